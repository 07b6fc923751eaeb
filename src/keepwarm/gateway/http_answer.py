"""One turn on a replica's channel, as its reader sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from keepwarm.chat.events import ChatEvent, ReasoningDelta, TextDelta, ToolCallArguments
from keepwarm.chat.request import ChatRequest
from keepwarm.chat.wire import encode_ask
from keepwarm.core.errors import ReplicaLost
from keepwarm.gateway.alarm import Alarm
from keepwarm.gateway.event_channel import EventChannel
from keepwarm.gateway.ports import AnswerClosed

_HIGH_WATER_BYTES = 256 << 10
"""Kept for a reader that does not keep up before the backend is asked to pause."""
_EVENT_BYTES = 256
"""What an event takes beside its text, roughly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaTimeouts:
    """Longest waits, in seconds."""

    connect_s: float = 2.0
    silence_s: float = 900.0
    """A turn about which the backend says nothing, queueing and reading included."""
    count_s: float = 30.0
    describe_s: float = 2.0
    metrics_s: float = 2.0


class HttpAnswer:
    """An `Answer`, and the `TurnListener` of its channel. The turn begins with the first `next`."""

    def __init__(
        self,
        request: ChatRequest,
        *,
        number: int,
        channel: Callable[[], Awaitable[EventChannel]],
        timeouts: ReplicaTimeouts,
    ) -> None:
        self._request: ChatRequest | None = request
        self._number = number
        self._open_channel = channel
        self._silence_s = timeouts.silence_s
        self._loop = asyncio.get_running_loop()
        self._channel: EventChannel | None = None
        self._events: list[ChatEvent] = []
        self.num_held_bytes = 0
        """Of events that came while others were not taken."""
        self._is_paused = False
        self._heard_at = 0.0
        self._lost: ReplicaLost | None = None
        self._is_closed = False
        self._waiter: asyncio.Future[None] | None = None
        self._alarm = Alarm(self._wake)

    async def next(self, wait_s: float) -> Sequence[ChatEvent]:
        """See `Answer.next`. Raises `BadRequest` for a request that cannot be sent."""
        now = self._loop.time()
        if self._channel is None:
            self._channel = await self._ask()
        if not (self._events or self._is_closed or self._lost):
            until = min(now + wait_s, self._heard_at + self._silence_s)
            if until > now:
                await self._wait(until)
        if self._is_closed:
            raise AnswerClosed
        if self._events:
            return self._take()
        if self._lost is not None:
            raise self._lost
        if self._loop.time() >= self._heard_at + self._silence_s:
            raise ReplicaLost(f"the backend said nothing for {self._silence_s:g} s")
        return ()

    def close(self) -> None:
        self._is_closed = True
        self._alarm.close()
        if self._channel is not None:
            self._channel.leave(self._number)
        self._wake()

    # TurnListener

    def hear(self, events: list[ChatEvent]) -> None:
        self._heard_at = self._loop.time()
        if self._events:
            self._hold(events)
        else:
            self._events = events
        self._wake()

    def lose(self, error: ReplicaLost) -> None:
        self._lost = error
        self._wake()

    async def _ask(self) -> EventChannel:
        if self._is_closed or self._request is None:
            raise AnswerClosed
        asked = encode_ask(self._number, self._request)
        self._request = None  # its texts are megabytes, and the answer may take minutes
        channel = await self._open_channel()
        if self._is_closed:
            raise AnswerClosed
        self._heard_at = self._loop.time()
        channel.ask(self._number, asked, self)
        return channel

    async def _wait(self, until: float) -> None:
        """Return when something happened, or then."""
        self._alarm.set(until)
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
            self._alarm.stop()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _hold(self, events: list[ChatEvent]) -> None:
        self._events += events
        self.num_held_bytes += sum(map(_size_bytes, events))
        if self.num_held_bytes > _HIGH_WATER_BYTES and not self._is_paused and self._channel is not None:
            self._is_paused = True
            self._channel.pause(self._number)

    def _take(self) -> list[ChatEvent]:
        events, self._events = self._events, []
        self.num_held_bytes = 0
        if self._is_paused and self._channel is not None:
            self._is_paused = False
            self._channel.resume(self._number)
        return events


def _size_bytes(event: ChatEvent) -> int:
    match event:
        case TextDelta() | ReasoningDelta():
            return _EVENT_BYTES + len(event.text)
        case ToolCallArguments():
            return _EVENT_BYTES + len(event.json)
        case _:
            return _EVENT_BYTES
