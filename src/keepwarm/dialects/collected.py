"""A whole answer, gathered from its events, for clients that do not stream."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, assert_never

from keepwarm.chat.events import (
    Accepted,
    Admitted,
    ChatEvent,
    Failed,
    Finished,
    ReasoningDelta,
    TextDelta,
    TokenReport,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from keepwarm.core.errors import InvariantBroken

PartKind = Literal["text", "reasoning", "tool"]


@dataclass(slots=True, kw_only=True)
class CollectedPart:
    """One stretch of the answer. `pieces` are words, or a call's arguments as JSON text."""

    kind: PartKind
    pieces: list[str] = field(default_factory=list)
    id: str = ""
    name: str = ""

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass(slots=True)
class Collected:
    """What came so far; complete once `finished` is set."""

    parts: list[CollectedPart] = field(default_factory=list)
    logprobs: list[TokenReport] = field(default_factory=list)
    finished: Finished | None = None

    def feed(self, event: ChatEvent) -> None:
        """Take the next event. `Failed` never comes here: it ends the request otherwise."""
        match event:
            case TextDelta():
                self.logprobs.extend(event.logprobs)
                self._piece("text", event.text)
            case ReasoningDelta():
                self._piece("reasoning", event.text)
            case ToolCallStart():
                self.parts.append(CollectedPart(kind="tool", id=event.id, name=event.name))
            case ToolCallArguments():
                self._piece("tool", event.json)
            case Finished():
                self.finished = event
            case Accepted() | Admitted() | ToolCallEnd() | Failed():
                pass
            case _:
                assert_never(event)

    def joined(self, kind: PartKind) -> str:
        """All stretches of one kind, end to end."""
        return "".join(part.text for part in self.parts if part.kind == kind)

    def end(self) -> Finished:
        """The terminal event. Raises `InvariantBroken` before it came."""
        if self.finished is None:
            raise InvariantBroken("an answer was read before it was complete")
        return self.finished

    def _piece(self, kind: PartKind, text: str) -> None:
        if not text:
            return
        if not self.parts or self.parts[-1].kind != kind:
            self.parts.append(CollectedPart(kind=kind))
        self.parts[-1].pieces.append(text)
