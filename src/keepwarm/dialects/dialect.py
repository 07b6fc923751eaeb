"""What the gateway asks of a dialect. Each dialect's package is one, as a module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from keepwarm.chat.events import ChatEvent
from keepwarm.chat.messages import Chat
from keepwarm.core.errors import KeepwarmError
from keepwarm.dialects.collected import Collected
from keepwarm.dialects.turn import Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerHead:
    """What names one answer. `created_at` is in Unix seconds."""

    request_id: str
    model: str
    created_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorReply:
    """An error as an HTTP answer."""

    status: int
    body: bytes
    retry_after_s: int | None = None
    is_lasting: bool = False
    """Sent again, it would be refused again, until somebody has mended something here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DialectOptions:
    """What an operator may decide about the reading of bodies."""

    strip_attribution: bool = True
    """Take off the line in the system field by which a client tells its vendor of itself: it changes
    with every request, so that no prefix after it is ever found again (--no-strip-attribution)."""


DEFAULT_OPTIONS = DialectOptions()


class AnswerStream(Protocol):
    """One answer as server-sent events: a state machine that is fed in order."""

    def feed(self, event: ChatEvent) -> bytes:
        """The bytes this event becomes, perhaps none. `Failed` is the gateway's to `fail`."""

    def ping(self) -> bytes:
        """What keeps the connection alive and means nothing; allowed at any time."""

    def progress(self) -> bytes:
        """What means nothing either, and which clients that wait for a true event take for one;
        allowed at any time."""

    def tells(self, error: KeepwarmError) -> bool:
        """Whether clients look for this error in the stream, and not in a status, even where it comes
        before anything else."""

    def fail(self, error: KeepwarmError) -> bytes:
        """The error event that ends the stream."""


class Dialect(Protocol):
    """One wire form."""

    @property
    def NAME(self) -> str:
        """For metrics and logs."""

    @property
    def LIST_FIELD(self) -> str:
        """The body's field that grows with the conversation."""

    def parse_turn(self, body: bytes, options: DialectOptions = DEFAULT_OPTIONS) -> Turn:
        """Raises `BadRequest` naming the field, the value and what is allowed."""

    def parse_count(self, body: bytes, options: DialectOptions = DEFAULT_OPTIONS) -> tuple[str, Chat]:
        """Model and conversation of a body whose tokens are to be counted. Raises `BadRequest`."""

    def open_stream(self, head: AnswerHead, turn: Turn) -> AnswerStream:
        """A stream whose answer has not begun."""

    def whole_answer(self, head: AnswerHead, turn: Turn, collected: Collected) -> bytes:
        """The body of a complete answer that was not streamed."""

    def error_reply(self, error: KeepwarmError, request_id: str) -> ErrorReply:
        """Status and body of an error before the first byte."""
