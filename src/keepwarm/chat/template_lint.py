"""What a chat template does to a growing conversation, and what that costs: findings, by trial.

A made-up agent's conversation is rendered and replayed as it would be served. Where a prompt does
not begin with the one before it and its answer, the lint says why and how many tokens are read
again. Prints nothing and decides nothing: a template that costs is served all the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from keepwarm.chat.lint_costs import ReadAgain, measure_changes, measure_date
from keepwarm.chat.lint_facts import beginning_of_text, facts
from keepwarm.chat.lint_finding import CAUSES, Finding
from keepwarm.chat.lint_trial import SMALL_AGENT, TYPICAL_AGENT, MadeUpAgent, run_trial
from keepwarm.chat.parsing.registry import AUTO
from keepwarm.chat.render import ChatRenderer
from keepwarm.chat.tokenizer import Tokenizer
from keepwarm.core.errors import BadRequest

_MINOR_TOKENS = 16
"""A cache block: so much of a turn's end is read again with any template."""


def lint_template(
    tokenizer: Tokenizer,
    renderer: ChatRenderer,
    *,
    agent: MadeUpAgent = TYPICAL_AGENT,
    tool_format: str = AUTO,
) -> tuple[Finding, ...]:
    """`renderer` is the tokenizer's. A template that only appends is told by a short conversation;
    for another one `agent`'s is rendered too, which takes seconds.

    Raises `BadSetting` for a tool format that there is not.
    """
    try:
        tried = tuple(_tried(tokenizer, renderer, agent))
    except BadRequest as error:
        tried = (_refusal(error),)
    return (*tried, *facts(tokenizer, renderer.program, tool_format=tool_format))


def _tried(tokenizer: Tokenizer, renderer: ChatRenderer, agent: MadeUpAgent) -> Iterator[Finding]:
    if measure_changes(tokenizer, renderer.program, SMALL_AGENT):
        changes = measure_changes(tokenizer, renderer.program, agent)
        yield from (_change(change, agent) for change in changes)
    else:
        what = "Every prompt begins with the one before it and its answer; nothing is read twice."
        yield Finding(id="prefix", severity="ok", what=what)
    if measure_date(tokenizer, SMALL_AGENT):
        yield _date(measure_date(tokenizer, agent), agent)
    yield beginning_of_text(tokenizer, run_trial(tokenizer, SMALL_AGENT, "none").question.after)


def _change(change: ReadAgain, agent: MadeUpAgent) -> Finding:
    what, fix = CAUSES[change.cause.id]
    tokens = change.tokens_a_turn(agent)
    return Finding(
        id=change.cause.id,
        severity="warning" if tokens >= _MINOR_TOKENS else "info",
        what=f"{what}. In {agent.describe()}, measured: {tokens:,} tokens a turn are read again on average, "
        f"{change.step_tokens:,} after a tool's result and {change.question_tokens:,} after a question, from "
        f"{change.cause.first} on (of {agent.num_turns}).",
        fix=fix,
        tokens_a_turn=tokens,
    )


def _date(num_tokens: int, agent: MadeUpAgent) -> Finding:
    what, fix = CAUSES["date"]
    return Finding(
        id="date",
        severity="info",
        what=f"{what}: after a start on another day, a turn of {agent.prompt_tokens:,} tokens reads "
        f"{num_tokens:,} of them again; once in a conversation of {agent.num_turns} turns is "
        f"{num_tokens // agent.num_turns:,} a turn.",
        fix=fix,
        tokens_a_turn=num_tokens // agent.num_turns,
    )


def _refusal(error: BadRequest) -> Finding:
    return Finding(
        id="refuses",
        severity="warning",
        what=f"The template refuses a coding agent's conversation, so nothing could be measured: {error}",
        fix="Use the model's newest template, or one that takes a system prompt, tools, calls and results.",
    )
