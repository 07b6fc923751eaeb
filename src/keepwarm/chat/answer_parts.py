"""An answer's deltas as the parts of a message: what its client will send back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

import msgspec

from keepwarm.chat.events import (
    Delta,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from keepwarm.chat.messages import Part, Reasoning, Text, ToolUse


class AnswerParts:
    """Takes every delta of one answer, in order."""

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._call: ToolCallStart | None = None
        self._pieces: list[str] = []
        """Of the call that is open, or of the last text or thought."""
        self._kind: type[Text] | type[Reasoning] | None = None
        self.num_calls = 0

    def add(self, deltas: Iterable[Delta]) -> None:
        for delta in deltas:
            self._add(delta)

    def all(self) -> tuple[Part, ...]:
        """The parts so far; a call that is still open is none of them."""
        self._end_stretch()
        return tuple(self._parts)

    def _add(self, delta: Delta) -> None:
        match delta:
            case TextDelta():
                self._extend(Text, delta.text)
            case ReasoningDelta():
                self._extend(Reasoning, delta.text)
            case ToolCallStart():
                self._end_stretch()
                self._call = delta
                self.num_calls += 1
            case ToolCallArguments():
                self._pieces.append(delta.json)
            case ToolCallEnd():
                self._end_call()
            case _:
                assert_never(delta)

    def _extend(self, kind: type[Text] | type[Reasoning], text: str) -> None:
        if self._kind is not kind:
            self._end_stretch()
            self._kind = kind
        self._pieces.append(text)

    def _end_stretch(self) -> None:
        if self._kind is None:
            return
        text = "".join(self._pieces)
        self._pieces.clear()
        if text:
            self._parts.append(self._kind(text=text))
        self._kind = None

    def _end_call(self) -> None:
        if self._call is None:
            return
        arguments = msgspec.json.decode("".join(self._pieces))
        self._parts.append(ToolUse(id=self._call.id, name=self._call.name, arguments=arguments))
        self._pieces.clear()
        self._call = None
