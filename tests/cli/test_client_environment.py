"""What Claude Code is told."""

from __future__ import annotations

import pytest

from keepwarm.cli.client_environment import claude_code_environment, context_warning


def environment(max_context_tokens: int) -> dict[str, str]:
    return claude_code_environment(
        url="http://127.0.0.1:8000", key="ik_live_x", model="m", max_context_tokens=max_context_tokens
    )


def test_every_role_of_the_client_gets_the_model() -> None:
    block = environment(200_000)

    for role in ("", "DEFAULT_HAIKU_", "DEFAULT_SONNET_", "DEFAULT_OPUS_"):
        assert block[f"ANTHROPIC_{role}MODEL"] == "m"
    assert block["CLAUDE_CODE_SUBAGENT_MODEL"] == "m"
    assert block["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:8000"
    assert block["ANTHROPIC_AUTH_TOKEN"] == "ik_live_x"


@pytest.mark.parametrize(
    ("max_context_tokens", "max_output_tokens"), [(8192, 2048), (128_000, 32_000), (1_000_000, 32_000)]
)
def test_the_client_is_told_the_context_and_a_part_of_it_for_answers(
    max_context_tokens: int, max_output_tokens: int
) -> None:
    block = environment(max_context_tokens)

    assert block["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == str(max_context_tokens)
    assert block["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == str(max_output_tokens)


@pytest.mark.parametrize(
    ("max_context_tokens", "window"), [(99_999, None), (100_000, "100000"), (450_000, "450000")]
)
def test_the_window_to_compact_at_is_the_real_one_where_the_client_takes_it(
    max_context_tokens: int, window: str | None
) -> None:
    assert environment(max_context_tokens).get("CLAUDE_CODE_AUTO_COMPACT_WINDOW") == window


def test_a_small_context_is_warned_of() -> None:
    assert "8192 tokens" in (context_warning(8192) or "")
    assert context_warning(32_767) is not None
    assert context_warning(32_768) is None
