"""An answer as the events of a response.

    response.created  response.in_progress  (an item's events)*
    response.completed | response.incomplete | response.failed

Items follow one another: one is closed before the next begins.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, assert_never

from keepwarm.chat.events import (
    Accepted,
    Admitted,
    ChatEvent,
    Failed,
    Finished,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from keepwarm.core.errors import ContextTooLong, InvariantBroken, KeepwarmError, from_wire
from keepwarm.dialects.dialect import AnswerHead
from keepwarm.dialects.openai_responses.form import form_of
from keepwarm.dialects.openai_responses.output import Event, OutputItem
from keepwarm.dialects.openai_responses.response import Response, status_of
from keepwarm.dialects.sse import named_event
from keepwarm.dialects.turn import Turn

_PING = b": keep-alive\n\n"


def open_stream(head: AnswerHead, turn: Turn) -> ResponseStream:
    """A stream whose answer has not begun."""
    return ResponseStream(Response(head, form_of(turn)))


class ResponseStream:
    """One streamed answer."""

    def __init__(self, response: Response) -> None:
        self._response = response
        self._open: OutputItem | None = None
        self._num_events = 0

    def feed(self, event: ChatEvent) -> bytes:
        """The bytes this event becomes, perhaps none."""
        return self._start() + b"".join(map(self._write, self._events(event)))

    def ping(self) -> bytes:
        return _PING

    def progress(self) -> bytes:
        return self._start() + self._write(("in_progress", {"response": self._response.in_progress()}))

    def tells(self, error: KeepwarmError) -> bool:
        """Codex compacts when a response failed for its length; a status of 400 ends its session."""
        return isinstance(error, ContextTooLong)

    def fail(self, error: KeepwarmError) -> bytes:
        """Clients look for the error in a response, so one is begun if it must be."""
        return self._start() + self._write(("failed", {"response": self._response.failed(error)}))

    def _events(self, event: ChatEvent) -> list[Event]:
        match event:
            case Accepted() | Admitted():
                return []
            case TextDelta():
                if not event.text and not event.logprobs:
                    return []
                return [*self._turn_to("text"), *self._item().add(event.text, event.logprobs)]
            case ReasoningDelta():
                return [*self._turn_to("reasoning"), *self._item().add(event.text)] if event.text else []
            case ToolCallStart():
                return self._begin(partial(self._response.call_item, event.name, event.id))
            case ToolCallArguments():
                return self._arguments(event.json)
            case ToolCallEnd():
                return self._end("completed")
            case Finished():
                return self._finish(event)
            case Failed():
                return [("failed", {"response": self._response.failed(from_wire(event.error))})]
            case _:
                assert_never(event)

    def _turn_to(self, kind: str) -> list[Event]:
        """An item of this kind is open now."""
        if self._open is not None and self._open.kind == kind:
            return []
        opened = self._response.text_item if kind == "text" else self._response.reasoning_item
        return self._begin(opened)

    def _arguments(self, piece: str) -> list[Event]:
        if self._item().kind in ("text", "reasoning"):
            raise InvariantBroken("arguments came outside a tool call")
        return self._item().add(piece) if piece else []

    def _begin(self, new_item: Callable[[], OutputItem]) -> list[Event]:
        """Close what is open first: the place of an item is the number of those before it."""
        ending = self._end("completed")
        self._open = new_item()
        return [*ending, *self._open.start()]

    def _end(self, status: str) -> list[Event]:
        if self._open is None:
            return []
        ending = self._open.end(status)
        self._response.output.append(self._open.item(status))
        self._open = None
        return ending

    def _item(self) -> OutputItem:
        if self._open is None:
            raise InvariantBroken("a piece of an item came before the item")
        return self._open

    def _finish(self, finished: Finished) -> list[Event]:
        status = status_of(finished)
        ending = self._end(status)
        return [*ending, (status, {"response": self._response.finished(finished)})]

    def _start(self) -> bytes:
        if self._num_events:
            return b""
        begun = {"response": self._response.in_progress()}
        return self._write(("created", begun)) + self._write(("in_progress", begun))

    def _write(self, event: Event) -> bytes:
        name = f"response.{event[0]}"
        body: dict[str, Any] = {"type": name, "sequence_number": self._num_events, **event[1]}
        self._num_events += 1
        return named_event(name.encode(), body)
