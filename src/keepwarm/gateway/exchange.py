"""One turn between a client and a replica, from the parsed body to its one terminal event.

    before headers:   first events ──▶ 200 and headers      Failed ──▶ its own HTTP status, or the
                                                            event where clients look for it there
                      `header_wait_s` over ──▶ 200, headers, ping
    after headers:    events ──▶ dialect ──▶ client          Failed ──▶ the dialect's error event
                      nothing for `ping_interval_s` ──▶ ping
                      only pings for `progress_interval_s` ──▶ an event that means nothing

One task reads the replica and writes the client, so a client that reads slowly slows the reading,
and nothing piles up here. A second one waits for the client to go, and then closes the answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from keepwarm.chat.events import ChatEvent, Failed, Finished, TextDelta
from keepwarm.core.errors import InvariantBroken, KeepwarmError, from_wire
from keepwarm.dialects.collected import Collected
from keepwarm.dialects.dialect import AnswerStream
from keepwarm.gateway.cached_note import cached_comment, cached_headers
from keepwarm.gateway.call import Call, ClientGone
from keepwarm.gateway.ports import Answer, AnswerClosed
from keepwarm.gateway.record import log_if_ours
from keepwarm.gateway.settings import GatewaySettings

_LOG = logging.getLogger("keepwarm.gateway")

_SSE_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


class Exchange:
    """Built for one turn; closes the answer on every way out."""

    def __init__(self, call: Call, answer: Answer, settings: GatewaySettings) -> None:
        self._call = call
        self._answer = answer
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._interruption: KeepwarmError | ClientGone | None = None

    def interrupt(self, reason: KeepwarmError | ClientGone) -> None:
        """End the turn for this reason; the first one counts."""
        if self._interruption is None:
            self._interruption = reason
        self._answer.close()

    async def collect(self) -> Collected:
        """The whole answer. Raises what it failed with, or `ClientGone`."""
        collected = Collected()
        async with self._watching_client():
            while collected.finished is None:
                for event in await self._next(self._settings.ping_interval_s):
                    _raise_failed(event)
                    collected.feed(event)
        return collected

    async def stream(self, stream: AnswerStream) -> None:
        """Stream the answer. Raises what it failed with before the headers, or `ClientGone`."""
        async with self._watching_client():
            events = await self._next(self._settings.header_wait_s)
            _raise_for_status(events, stream)
            await self._call.start(200, _SSE_HEADERS | cached_headers(self._call.record.cached))
            try:
                await self._relay(events, stream)
            except KeepwarmError as error:
                await self._end_failed(stream, error)
            except ClientGone:
                raise
            except Exception:
                _LOG.exception("request %s failed", self._call.record.request_id)
                await self._end_failed(stream, InvariantBroken("unexpected error"))
            await self._call.finish()

    async def _relay(self, events: Sequence[ChatEvent], stream: AnswerStream) -> None:
        """Everything until the terminal event, starting with `events`; none of them is a ping."""
        pulse = Pulse(self._settings, self._loop.time())
        while True:
            piece = self._fed(stream, events) if events else pulse.sign(stream, self._loop.time())
            if piece:
                await self._call.write(piece)
                pulse.sent(self._loop.time(), is_true=bool(events))
            if events and isinstance(events[-1], Finished | Failed):
                _raise_failed(events[-1])
                return
            events = await self._next(pulse.wait_s(self._loop.time()))

    async def _end_failed(self, stream: AnswerStream, error: KeepwarmError) -> None:
        record = self._call.record
        record.outcome = error.code
        log_if_ours(error, record.request_id)
        await self._call.write(cached_comment(record.cached) + stream.fail(error))

    def _fed(self, stream: AnswerStream, events: Sequence[ChatEvent]) -> bytes:
        if len(events) == 1 and isinstance(events[0], TextDelta):
            return stream.feed(events[0])  # the token of a step
        return b"".join([self._fed_one(stream, event) for event in events])

    def _fed_one(self, stream: AnswerStream, event: ChatEvent) -> bytes:
        match event:
            case Failed():
                return b""  # `_end_failed` has the last word
            case Finished():
                return cached_comment(event.usage.cached) + stream.feed(event)
            case _:
                return stream.feed(event)

    async def _next(self, wait_s: float) -> Sequence[ChatEvent]:
        try:
            events = await self._answer.next(wait_s)
        except AnswerClosed as error:
            raise self._interruption or InvariantBroken("an answer was closed by nobody") from error
        now = self._loop.time()
        for event in events:
            self._call.record.note(event, now)
        return events

    @asynccontextmanager
    async def _watching_client(self) -> AsyncIterator[None]:
        watch = asyncio.create_task(self._watch_client(), name="watch for the client to go")
        try:
            yield
        finally:
            self._answer.close()
            watch.cancel()
            await asyncio.wait({watch})

    async def _watch_client(self) -> None:
        await self._call.wait_gone()
        self.interrupt(ClientGone("client_gone"))


class Pulse:
    """When a silent stream needs a sign of life, and which."""

    def __init__(self, settings: GatewaySettings, now: float) -> None:
        self._settings = settings
        self._sent_at = now
        self._progressed_at = now

    def wait_s(self, now: float) -> float:
        """How long nothing need be sent."""
        return max(0.0, self._sent_at + self._settings.ping_interval_s - now)

    def sign(self, stream: AnswerStream, now: float) -> bytes:
        """What to send now that nothing came."""
        if now - self._progressed_at < self._settings.progress_interval_s:
            return stream.ping()
        self._progressed_at = now
        return stream.progress()

    def sent(self, now: float, *, is_true: bool) -> None:
        """Something was sent: events of the answer, or a sign of life."""
        self._sent_at = now
        if is_true:
            self._progressed_at = now


def _raise_for_status(events: Sequence[ChatEvent], stream: AnswerStream) -> None:
    """What failed before it began still gets a status of its own, where clients look for one."""
    if events and isinstance(events[-1], Failed):
        error = from_wire(events[-1].error)
        if not stream.tells(error):
            raise error


def _raise_failed(event: ChatEvent) -> None:
    if isinstance(event, Failed):
        raise from_wire(event.error)
