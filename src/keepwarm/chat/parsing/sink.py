"""What was found in an answer's text, as deltas."""

from __future__ import annotations

from collections.abc import Callable

from keepwarm.chat.events import (
    Delta,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from keepwarm.chat.parsing.held_space import WHITE_SPACE, HeldSpace


class AnswerSink:
    """Collects one answer's deltas. White space beside a call is layout and does not go out."""

    def __init__(self, new_call_id: Callable[[], str]) -> None:
        self._new_call_id = new_call_id
        self._deltas: list[Delta] = []
        self._space = HeldSpace()
        self._follows_call = False
        self.line_is_blank = True
        """Nothing but white space since the last line break, call or the beginning."""
        self.num_malformed = 0

    def text(self, text: str) -> None:
        """More of what the client reads."""
        self._watch_line(text)
        if self._follows_call:
            text = text.lstrip(WHITE_SPACE)
        if not text:
            return
        self._follows_call = False
        self._add_text(self._space.add(text))

    def reasoning(self, text: str) -> None:
        """More of what the model thinks."""
        if text:
            self._add_text(self._space.release())
            self._deltas.append(ReasoningDelta(text=text))

    def start_call(self, name: str) -> None:
        """`arguments` and `end_call` must follow."""
        self._space.drop()
        self._deltas.append(ToolCallStart(id=self._new_call_id(), name=name))

    def arguments(self, json: str) -> None:
        """More of the open call's arguments."""
        if not json:
            return
        last = self._deltas[-1] if self._deltas else None
        if isinstance(last, ToolCallArguments):
            self._deltas[-1] = ToolCallArguments(json=last.json + json)
        else:
            self._deltas.append(ToolCallArguments(json=json))

    def end_call(self) -> None:
        """The arguments are one whole JSON object."""
        self._deltas.append(ToolCallEnd())
        self._follows_call = self.line_is_blank = True

    def malformed(self) -> None:
        """Counts a stretch of markup that could not be read as what it seemed to be."""
        self.num_malformed += 1

    def finish(self) -> None:
        """No more comes: white space at the end of a text belongs to it."""
        self._add_text(self._space.release())

    def take(self) -> list[Delta]:
        """What came since the last time."""
        deltas, self._deltas = self._deltas, []
        return deltas

    def _add_text(self, text: str) -> None:
        if not text:
            return
        last = self._deltas[-1] if self._deltas else None
        if isinstance(last, TextDelta):
            self._deltas[-1] = TextDelta(text=last.text + text)
        else:
            self._deltas.append(TextDelta(text=text))

    def _watch_line(self, text: str) -> None:
        _, line_break, line = text.rpartition("\n")
        self.line_is_blank = (self.line_is_blank or bool(line_break)) and not line.strip(WHITE_SPACE)
