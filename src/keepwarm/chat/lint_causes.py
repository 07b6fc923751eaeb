"""Why a prompt does not begin with the one before it: told from the two texts. Measures nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass

from keepwarm.chat.lint_trial import Growth
from keepwarm.chat.tokenizer import Tokenizer
from keepwarm.core.ids import TokenIds

_MARK = re.compile(r"qq(tools|system|question|thought|answer|call|result)(\d{5})")
_LONGEST_MARK = 16
_HEAD = {"tools": "the tools", "system": "the system prompt"}
_MOVES = {"tools": "tools-move", "system": "system-moves"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """`first` is the first message, in words, that the next prompt does not have as it was."""

    id: str
    first: str


def cause_of(growth: Growth, tokenizer: Tokenizer, invitation: str) -> Cause:
    """Of the first difference between what was cached and the next prompt, which must have one."""
    before = _text(tokenizer, growth.before.tokens)
    cached = before + _text(tokenizer, growth.generated)
    after = _text(tokenizer, growth.after.tokens)
    at = _num_alike(cached, after)
    return Cause(
        id=_moved(cached, after)
        or _rewritten(cached, after, at, asked=len(before) - len(invitation), answered=len(before)),
        first=_first_message(cached, at),
    )


def drops_thoughts(growth: Growth, tokenizer: Tokenizer) -> bool:
    """Whether a thought is gone that was cached."""
    cached, after = _text(tokenizer, growth.cached), _text(tokenizer, growth.after.tokens)
    return any(kind == "thought" for kind, _ in set(_order(cached)) - set(_order(after)))


def _text(tokenizer: Tokenizer, tokens: TokenIds) -> str:
    """Control tokens spelled out."""
    return b"".join(map(tokenizer.token_bytes, tokens.tolist())).decode("utf-8", "replace")


def _moved(cached: str, after: str) -> str | None:
    """What stands behind messages that it stood before."""
    old, new = _order(cached), _order(after)
    old, new = [mark for mark in old if mark in new], [mark for mark in new if mark in old]
    kinds = {kind for kind, number in old if new.index((kind, number)) > old.index((kind, number))}
    return next((cause for kind, cause in _MOVES.items() if kind in kinds), None)


def _order(text: str) -> list[tuple[str, str]]:
    return [(match[1], match[2]) for match in _MARK.finditer(text)]


def _rewritten(cached: str, after: str, at: int, *, asked: int, answered: int) -> str:
    """`asked` and `answered` are where the invitation begins and ends in what was cached."""
    if asked <= at < answered:
        return "header-differs"
    if at == len(cached):  # the same text, in other tokens
        return "answer-rewritten"
    one, other = _passage(cached, at), _passage(after, at)
    if one.isspace() or _without(r"\s", one) == _without(r"\s", other):
        return "whitespace"
    if at >= answered:
        return "answer-rewritten"
    if _without(r"\d", one) == _without(r"\d", other):
        return "numbering"
    last = max((match.start() for match in _MARK.finditer(cached, 0, asked)), default=0)
    return "last-message-text" if at > last else "text-changes"


def _passage(text: str, at: int) -> str:
    """From the difference to the next message."""
    match = _next_mark(text, at)
    return text[at:] if match is None else text[at : max(at, match.start())]


def _num_alike(one: str, other: str) -> int:
    length = min(len(one), len(other))
    return next((at for at in range(length) if one[at] != other[at]), length)


def _without(pattern: str, text: str) -> str:
    return re.sub(pattern, "", text)


def _next_mark(text: str, at: int) -> re.Match[str] | None:
    """The first that ends after `at`: the difference may lie inside it."""
    marks = _MARK.finditer(text, max(0, at - _LONGEST_MARK))
    return next((match for match in marks if match.end() > at), None)


def _first_message(cached: str, at: int) -> str:
    match = _next_mark(cached, at)
    if match is None:
        return "the last answer's end"
    kind, turn = match[1], int(match[2])
    if kind in _HEAD:
        return _HEAD[kind]
    if kind == "question" and turn == 0:
        return "the first question"
    return f"the {kind} of turn {turn}"
