"""One conversation's text and ids: what the template writes, and answers as they were generated.

    template → text ─cut→  plain text │ control token │ answer as generated
                           ids, memoised       id          ids, as they were

Knows neither what is remembered of whom nor what a conversation looked like a turn ago.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from keepwarm.chat.answer_place import AnswerPlace, Thoughts
from keepwarm.chat.memo import BoundedMemo
from keepwarm.chat.messages import Message, ToolSpec
from keepwarm.chat.replay import RememberedAnswer
from keepwarm.chat.template import ChatTemplate
from keepwarm.chat.template_messages import MessageForm, MessageWriter, OfferedTools, Place
from keepwarm.chat.tokenizer import Tokenizer
from keepwarm.core.ids import TenantId, TokenIds, token_ids

_SEGMENT_BYTES = 200  # key and bookkeeping of one remembered segment, besides its ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Locality:
    """For which conversations a template writes each message by itself: (with thoughts, and a new
    question is asked), each apart."""

    kinds: frozenset[tuple[bool, bool]] = frozenset()

    def covers(self, has_reasoning: bool, asks: bool) -> bool:
        return (has_reasoning, asks) in self.kinds


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A template and what was learnt of it. No other one of the same model has its name."""

    name: bytes
    template: ChatTemplate
    form: MessageForm
    place: AnswerPlace
    thoughts: Thoughts
    locality: Locality


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Two characters that occur nowhere in the conversation."""

    shield: str
    place: str

    def of_answer(self, index: int) -> str:
        return f"{self.place}{index}{self.place}"

    def of_reasoning(self, index: int) -> str:
        return f"{self.place}r{index}{self.place}"

    @property
    def prefill_start(self) -> str:
        return f"{self.place}s{self.place}"

    @property
    def prefill_end(self) -> str:
        return f"{self.place}e{self.place}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTurn:
    """One conversation on its way to a prompt."""

    tenant: TenantId
    messages: tuple[Message, ...]
    before: Sequence[bytes]
    """A name for what stands before each message, and as the last one for the whole."""
    offered: OfferedTools
    program: Program
    marks: Marks
    invites: bool
    continues: bool
    """The last message is the beginning of the answer."""

    @property
    def begun(self) -> Message | None:
        """That last message."""
        return self.messages[-1] if self.continues else None


Piece = str | TokenIds


class PromptWriter:
    """One model's. Threads may share it."""

    def __init__(self, tokenizer: Tokenizer, *, segment_memo_bytes: int) -> None:
        self._tokenizer = tokenizer
        self.segments: BoundedMemo[bytes, TokenIds] = BoundedMemo(max_bytes=segment_memo_bytes)
        stops = "|".join(re.escape(text) for text in tokenizer.stop_texts())
        self._stop_pattern = re.compile(stops or "(?!)")
        self._control_ids = _ControlIds()

    def offer(self, program: Program, marks: Marks, tools: Sequence[ToolSpec]) -> OfferedTools:
        """The tools as the program's template takes them."""
        return self._message_writer(program, marks, {}).offer(tools)

    def text(self, turn: PromptTurn, answers: Mapping[int, RememberedAnswer]) -> str:
        """The template's output, with marks in the answers' places. Raises `BadRequest`."""
        marks, last = turn.marks, len(turn.messages) - 1
        places = {
            index: Place(
                content=marks.of_answer(index),
                reasoning=marks.of_reasoning(index) if answer.has_reasoning else "",
            )
            for index, answer in answers.items()
        }
        if turn.continues and last not in places:
            begun = self._tokenizer.control.shield(turn.messages[last].text(), marks.shield)
            places[last] = Place(content=marks.prefill_start + begun + marks.prefill_end)
        writer = self._message_writer(turn.program, marks, places)
        return turn.program.template.render(
            writer.messages(turn.messages, turn.offered),
            tools=turn.offered.native,
            add_generation_prompt=turn.invites and not turn.continues,
        )

    def pieces(
        self, turn: PromptTurn, text: str, answers: Mapping[int, RememberedAnswer]
    ) -> tuple[list[Piece], set[int]]:
        """The text with answers in their places, and the indices whose place was not found."""
        pieces: list[Piece] = []
        failed: set[int] = set()
        at = 0
        for index, answer in answers.items():
            span = self._span_of_answer(turn, text, at, index)
            if span is None or not self._keeps_reasoning(turn, text[slice(*span)], index, answer):
                failed.add(index)
                continue
            pieces += [text[at : span[0]] + answer.header, answer.tokens]
            at = span[1]
        pieces.append(text[at:])
        return pieces, failed

    def encode(self, turn: PromptTurn, pieces: Sequence[Piece], *, opening: bool = True) -> TokenIds:
        """Ids of the pieces; `opening`: they are the prompt's first."""
        parts = list(self._encoded_parts(turn, pieces, opening))
        return np.concatenate(parts) if parts else token_ids([])

    def is_seam(self, before: str, *after: str) -> bool:
        """Whether the ids of `before` are the same, whichever of the other texts follows it."""
        control = self._tokenizer.control
        first = {control.first(text) for text in after}
        return (len(first) == 1 and None not in first) or control.ends_closed(before)

    def _message_writer(self, program: Program, marks: Marks, places: Mapping[int, Place]) -> MessageWriter:
        control = self._tokenizer.control
        return MessageWriter(
            program.form, shield=lambda text: control.shield(text, marks.shield), places=places
        )

    def _keeps_reasoning(self, turn: PromptTurn, text: str, index: int, answer: RememberedAnswer) -> bool:
        """A template that drops an old turn's reasoning has its way: the ids would bring it back."""
        if not answer.has_reasoning or turn.program.thoughts == "always":
            return True
        return turn.program.thoughts == "as_shown" and turn.marks.of_reasoning(index) in text

    def _span_of_answer(self, turn: PromptTurn, text: str, since: int, index: int) -> tuple[int, int] | None:
        """From the answer's header to the stop token after it, or to the end if it is continued."""
        found = text.find(turn.marks.of_answer(index), since)
        if found < 0:
            return None
        place = turn.program.place
        start = place.start(text, since, found)
        if start is None:
            return None
        if turn.continues and index == len(turn.messages) - 1:
            return start, len(text)
        stop = self._stop_pattern.search(text, found)
        if stop is None or (place.opening and text.find(place.opening, found, stop.start()) >= 0):
            return None
        return start, stop.start()

    def _encoded_parts(self, turn: PromptTurn, pieces: Sequence[Piece], opening: bool) -> Iterator[TokenIds]:
        for piece in pieces:
            if not isinstance(piece, str):
                yield piece
                continue
            for segment in self._tokenizer.control.cut(piece):
                if isinstance(segment, int):
                    yield self._control_ids[segment]
                elif text := segment.replace(turn.marks.shield, ""):
                    yield self._encode_segment(turn.tenant, text, opening)
                opening = False

    def _encode_segment(self, tenant: TenantId, text: str, opening: bool) -> TokenIds:
        """A tenant's own memory: another's must not show in how long this takes."""
        salt = f"{tenant}\0{opening}".encode()
        key = hashlib.blake2b(text.encode(), digest_size=16, key=hashlib.sha256(salt).digest()).digest()
        ids = self.segments.get(key)
        if ids is None:
            ids = self._tokenizer.encode(text, after_control_token=not opening)
            self.segments.put(key, ids, ids.nbytes + _SEGMENT_BYTES)
        return ids


class _ControlIds(dict[int, TokenIds]):
    """Each control token's id as an array of one."""

    def __missing__(self, token: int) -> TokenIds:
        self[token] = ids = token_ids([token])
        return ids
