"""The environment that points Claude Code at a Keepwarm server. Text only."""

from __future__ import annotations

CLAUDE_CODE_LEAST_CONTEXT_TOKENS = 32_768
"""Claude Code's first request alone is 12K tokens and more; below this a session ends as it begins."""

CLAUDE_CODE_MOST_OUTPUT_TOKENS = 32_000
"""What Claude Code asks for by itself; more is of no use to it."""

CLAUDE_CODE_LEAST_COMPACT_WINDOW_TOKENS = 100_000
"""It warns of a smaller window for compaction and takes this one instead; the context alone then does."""

OUTPUT_SHARE_OF_CONTEXT = 4
"""An answer may take this part of a small context (1/4), so that its prompt has room."""


def claude_code_environment(*, url: str, key: str, model: str, max_context_tokens: int) -> dict[str, str]:
    """Variables for a client's shell. It takes a model that it does not know for one of 1M tokens, and
    a name of its own models for what it knows of those: so every role gets the served name."""
    max_output_tokens = min(CLAUDE_CODE_MOST_OUTPUT_TOKENS, max_context_tokens // OUTPUT_SHARE_OF_CONTEXT)
    environment = {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_AUTH_TOKEN": key,
        "ANTHROPIC_MODEL": model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": model,
        "ANTHROPIC_DEFAULT_SONNET_MODEL": model,
        "ANTHROPIC_DEFAULT_OPUS_MODEL": model,
        "CLAUDE_CODE_SUBAGENT_MODEL": model,
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(max_context_tokens),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(max_output_tokens),
        # Nothing but the conversation leaves the client's machine.
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    if max_context_tokens >= CLAUDE_CODE_LEAST_COMPACT_WINDOW_TOKENS:
        environment["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] = str(max_context_tokens)
    return environment


def context_warning(max_context_tokens: int) -> str | None:
    """What to know before Claude Code meets a small context, or None where it is large enough."""
    if max_context_tokens >= CLAUDE_CODE_LEAST_CONTEXT_TOKENS:
        return None
    return (
        f"the context is {max_context_tokens} tokens: too small for Claude Code, whose first request alone "
        f"is 12,000 tokens and more. Use a model with at least {CLAUDE_CODE_LEAST_CONTEXT_TOKENS} "
        "(--model, --max-model-len). Codex, opencode and qwen-code begin with 7,000 to 16,000 tokens; "
        "curl and the SDKs work."
    )
