"""Tokens that a turn reads again, by cause: trials without thoughts tell what a template does to
messages, trials with them what it does to thoughts on top."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

from keepwarm.chat.invitation import num_equal
from keepwarm.chat.lint_causes import Cause, cause_of, drops_thoughts
from keepwarm.chat.lint_trial import A_DAY, MadeUpAgent, Thinking, Trial, run_trial
from keepwarm.chat.parsing.reasoning import reasoning_for
from keepwarm.chat.prompt_writer import Program
from keepwarm.chat.tokenizer import Tokenizer

_THINKING_CLIENTS: tuple[Thinking, ...] = ("returned", "left_out")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAgain:
    """After a tool's result, and after a question."""

    cause: Cause
    step_tokens: int = 0
    question_tokens: int = 0

    def tokens_a_turn(self, agent: MadeUpAgent) -> int:
        return round(agent.average(step=self.step_tokens, question=self.question_tokens))


def measure_changes(tokenizer: Tokenizer, program: Program, agent: MadeUpAgent) -> list[ReadAgain]:
    """Empty for a template that only appends. Raises `BadRequest` where it refuses the conversation."""
    plain = run_trial(tokenizer, agent, "none")
    found = _of_messages(tokenizer, program, plain)
    if _thinks(tokenizer, program):
        found += _of_thoughts(tokenizer, program, agent, plain)
    return found


def measure_date(tokenizer: Tokenizer, agent: MadeUpAgent) -> int:
    """Tokens that the next turn reads again after a start on another day; 0 where no date shows."""
    if not any("strftime_now" in source for source in tokenizer.chat_templates.values()):
        return 0
    today, tomorrow = (
        run_trial(tokenizer, agent, "none", now=day).question.after.tokens
        for day in (A_DAY, A_DAY + timedelta(days=1))
    )
    return len(tomorrow) - num_equal(today, tomorrow)


def _thinks(tokenizer: Tokenizer, program: Program) -> bool:
    """Whether anything in the template speaks of thoughts, and an answer may begin with one."""
    source = "\n".join(tokenizer.chat_templates.values())
    marks = reasoning_for(source)
    speaks = program.thoughts == "as_shown" or marks.open in source or marks.close in source
    return speaks and not marks.closed_by(program.place.invitation)


def _of_messages(tokenizer: Tokenizer, program: Program, plain: Trial) -> list[ReadAgain]:
    found: dict[str, ReadAgain] = {}
    for growth, is_step in ((plain.step, True), (plain.question, False)):
        lost = growth.lost_tokens
        if not lost:
            continue
        cause = cause_of(growth, tokenizer, program.place.invitation)
        known = found.get(cause.id, ReadAgain(cause=cause))
        found[cause.id] = (
            replace(known, step_tokens=lost) if is_step else replace(known, question_tokens=lost)
        )
    return list(found.values())


def _of_thoughts(tokenizer: Tokenizer, program: Program, agent: MadeUpAgent, plain: Trial) -> list[ReadAgain]:
    """What comes on top with thoughts, for the client that fares worse."""
    returned, left_out = (
        _on_top(run_trial(tokenizer, agent, thinking), plain, tokenizer, program)
        for thinking in _THINKING_CLIENTS
    )
    if left_out is not None and returned is None:
        return [replace(left_out, cause=replace(left_out.cause, id="thoughts-not-replayed"))]
    found = [each for each in (returned, left_out) if each is not None]
    return [max(found, key=lambda each: each.tokens_a_turn(agent))] if found else []


def _on_top(trial: Trial, plain: Trial, tokenizer: Tokenizer, program: Program) -> ReadAgain | None:
    step = max(0, trial.step.read_tokens - plain.step.read_tokens)
    question = max(0, trial.question.read_tokens - plain.question.read_tokens)
    if not step and not question:
        return None
    growth = trial.step if step else trial.question
    cause = cause_of(growth, tokenizer, program.place.invitation)
    if drops_thoughts(growth, tokenizer):
        name = "thoughts-dropped-always" if step else "thoughts-dropped-after-question"
        cause = replace(cause, id=name)
    return ReadAgain(cause=cause, step_tokens=step, question_tokens=question)
