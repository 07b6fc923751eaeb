"""A conversation that has grown, rendered at the cost of what is new.

    messages:  head │ … │ tail ┊ new           the window is head + tail: a dozen messages
    window:    head │ tail                     → text W          (ids of the whole conversation: A)
    grown:     head │ tail │ new               → text W + delta  (ids: A + ids of delta)

The delta stands for what the new messages add to the whole conversation. That holds for templates
that write a message by itself and its neighbours; `locality` tries each template for it, and one
that looks further is rendered whole. Where the grown text does not begin with the old one, as when
a template rewrites what it wrote, the answer here is None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from keepwarm.chat.conversation import fold, texts_of
from keepwarm.chat.growing_array import GrowingArray
from keepwarm.chat.known_conversations import KnownConversation
from keepwarm.chat.messages import Chat, Message, Reasoning, ToolResult, ToolUse
from keepwarm.chat.prompt_writer import Piece, PromptTurn, PromptWriter
from keepwarm.chat.replay import RememberedAnswer, keys_before
from keepwarm.core.ids import TokenIds

_MAX_WINDOW = 12
"""Messages; beyond it the window is cut again, which renders it once more."""
_MIN_TAIL = 4

Recall = Callable[[PromptTurn, int], Mapping[int, RememberedAnswer]]
"""The remembered answers among a turn's messages from an index on."""


class Growth:
    """Of one model's conversations."""

    def __init__(self, writer: PromptWriter) -> None:
        self._writer = writer

    def first(
        self, turn: PromptTurn, answers: Mapping[int, RememberedAnswer], prompt: TokenIds
    ) -> KnownConversation | None:
        """What to keep of a conversation that was rendered whole; None where it cannot grow."""
        invitation = turn.program.place.invitation
        if not turn.invites or turn.continues or not turn.messages or turn.messages[-1].role != "user":
            return None
        window, kept = cut_window(turn, answers)
        text = self._writer.text(window, kept)
        ids = self._writer.encode(window, [invitation], opening=False)
        num_tokens = len(prompt) - len(ids)
        if not text.endswith(invitation) or not np.array_equal(prompt[num_tokens:], ids):
            return None
        return KnownConversation(
            turn=window,
            answers=kept,
            text=text.removesuffix(invitation),
            tokens=GrowingArray(prompt[:num_tokens]),
            num_tokens=num_tokens,
            num_replayed_tokens=sum(len(answer.tokens) for answer in answers.values()),
            has_reasoning=has_reasoning(turn.messages, answers),
        )

    def grow(self, known: KnownConversation, new: Sequence[Message], recall: Recall) -> GrownPrompt | None:
        """The prompt of the known conversation and `new`; None where it takes the whole to tell."""
        first = len(known.turn.messages)
        turn = grown_turn(known.turn, new)
        if turn is None:
            return None
        answers = recall(turn, first)
        thinks = known.has_reasoning or has_reasoning(turn.messages, answers)
        if not turn.program.locality.covers(thinks, asks(turn.messages[first:])):
            return None
        delta = self._delta(known, turn, answers)
        if delta is None:
            return None
        ids = self._writer.encode(turn, delta.pieces, opening=False)
        invitation = self._writer.encode(turn, [turn.program.place.invitation], opening=False)
        grown = KnownConversation(
            turn=turn,
            answers={**known.answers, **delta.answers},
            text=delta.text,
            tokens=known.tokens.appended(known.num_tokens, ids),
            num_tokens=known.num_tokens + len(ids),
            num_replayed_tokens=known.num_replayed_tokens
            + sum(len(answer.tokens) for answer in delta.answers.values()),
            has_reasoning=thinks,
            named_before=known.last_naming,
        )
        return GrownPrompt(
            tokens=np.concatenate([grown.ids, invitation]),
            known=self._trimmed(grown),
        )

    def _delta(
        self, known: KnownConversation, turn: PromptTurn, answers: Mapping[int, RememberedAnswer]
    ) -> _Delta | None:
        """Answers whose place the template hides come as plain text, or not at all."""
        for _ in range(2):
            text = self._writer.text(turn, {**known.answers, **answers})
            invitation = turn.program.place.invitation
            if not text.startswith(known.text) or not text.endswith(invitation):
                return None
            end = len(text) - len(invitation)
            added = text[len(known.text) : end]
            if not self._writer.is_seam(known.text, added + invitation, invitation):
                return None
            pieces, failed = self._writer.pieces(turn, added, answers)
            if not failed:
                return _Delta(text=text[:end], pieces=pieces, answers=answers)
            answers = {index: answer for index, answer in answers.items() if index not in failed}
        return None

    def _trimmed(self, known: KnownConversation) -> KnownConversation:
        """The same with a window that is not longer than need be."""
        if len(known.turn.messages) <= _MAX_WINDOW:
            return known
        window, answers = cut_window(known.turn, known.answers)
        text = self._writer.text(window, answers).removesuffix(window.program.place.invitation)
        return replace(known, turn=window, answers=answers, text=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class GrownPrompt:
    """A grown conversation's prompt."""

    tokens: TokenIds
    known: KnownConversation


@dataclass(frozen=True, slots=True, kw_only=True)
class _Delta:
    """`text` is the grown window's, `pieces` are of what was added to it."""

    text: str
    pieces: list[Piece]
    answers: Mapping[int, RememberedAnswer]


def grown_turn(turn: PromptTurn, new: Sequence[Message]) -> PromptTurn | None:
    """The turn with more messages; None where these change the ones before, bring the result of a
    call that the window may have lost, or end in an answer that has begun."""
    marks = (turn.marks.shield, turn.marks.place)
    if any(mark in text for text in texts_of(Chat(messages=tuple(new))) for mark in marks):
        return None
    num_before = len(turn.messages)
    messages = fold(Chat(messages=(*turn.messages, *new)))
    if messages[:num_before] != turn.messages or not messages or messages[-1].role != "user":
        return None
    if not _holds_calls_of(messages, new):
        return None
    before = (*turn.before[:-1], *keys_before(messages[num_before:], turn.before[-1]))
    return replace(turn, messages=messages, before=before)


def _holds_calls_of(messages: Sequence[Message], new: Sequence[Message]) -> bool:
    """A template is told a result's tool by its name, which stands in the call."""
    made = {part.id for message in messages for part in message.parts if isinstance(part, ToolUse)}
    answered = {part.tool_use_id for each in new for part in each.parts if isinstance(part, ToolResult)}
    return answered <= made


def cut_window(
    turn: PromptTurn, answers: Mapping[int, RememberedAnswer]
) -> tuple[PromptTurn, dict[int, RememberedAnswer]]:
    """The head, up to the first question, and the last few messages, the first of them an answer:
    so roles still take turns."""
    num_head = 1 + next((i for i, message in enumerate(turn.messages) if message.role == "user"), 0)
    start = len(turn.messages) - _MIN_TAIL
    while start > num_head and turn.messages[start].role != "assistant":
        start -= 1
    if start <= num_head:
        return turn, dict(answers)
    num_cut = start - num_head
    moved = {
        index if index < num_head else index - num_cut: answer
        for index, answer in answers.items()
        if index < num_head or index >= start
    }
    messages = (*turn.messages[:num_head], *turn.messages[start:])
    before = (*turn.before[:num_head], *turn.before[start:])
    return replace(turn, messages=messages, before=before), moved


def has_reasoning(messages: Sequence[Message], answers: Mapping[int, RememberedAnswer]) -> bool:
    """Whether the template is given any thoughts."""
    return any(answer.has_reasoning for answer in answers.values()) or any(
        isinstance(part, Reasoning)
        for index, message in enumerate(messages)
        if index not in answers
        for part in message.parts
    )


def asks(new: Sequence[Message]) -> bool:
    """Whether somebody asks anew, not only a tool answers."""
    return any(message.role == "user" and message.text() for message in new)
