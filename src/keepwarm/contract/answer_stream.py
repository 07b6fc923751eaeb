"""One answer on its way out: from a backend's iterator to the body of an HTTP response.

    iterator ──pump──▶ pending ──writer──▶ client        and  client ──disconnect──▶ closes all

What the backend says without waiting in between goes out as one piece, so a step of the engine
costs one write and not one a token. Whatever happens, the client is sent exactly one terminal
event or is gone, and the iterator is closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

from keepwarm.chat.events import ChatEvent, Failed, Terminal
from keepwarm.chat.request import ChatRequest
from keepwarm.chat.wire import encode_events
from keepwarm.contract.backend import Backend
from keepwarm.core.errors import InvariantBroken, KeepwarmError, to_wire

logger = logging.getLogger(__name__)

_MAX_PENDING_EVENTS = 1024
"""Beyond this the backend is not asked for more until the client has read."""
_WRITE_LIMIT_S = 600.0
"""A client that reads nothing for this long is taken for gone."""

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


async def stream_answer(backend: Backend, request: ChatRequest, receive: Receive, send: Send) -> None:
    """Send the body of a response whose head has been sent. Returns when it is complete or the
    client is gone; nothing of the request is left then."""
    answer = _Answer(backend, request)
    pump = asyncio.create_task(answer.pump(), name=f"pump {request.request_id}")
    writer = asyncio.create_task(_write(answer, send), name=f"writer {request.request_id}")
    gone = asyncio.create_task(_disconnected(receive), name=f"disconnect {request.request_id}")
    try:
        await asyncio.wait({writer, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (pump, writer, gone):
            task.cancel()
        await asyncio.gather(pump, writer, gone, return_exceptions=True)
        await answer.close()
    if not writer.cancelled() and (error := writer.exception()) is not None:
        logger.info("request %s: the client stopped reading: %r", request.request_id, error)


class _Answer:
    """What the backend has said and the client has not been sent."""

    def __init__(self, backend: Backend, request: ChatRequest) -> None:
        self._backend = backend
        self._request = request
        self._events: AsyncIterator[ChatEvent] | None = None
        self._pending: list[ChatEvent] = []
        self._filled = asyncio.Event()
        self._taken = asyncio.Event()

    async def pump(self) -> None:
        """Ask the backend for events until the terminal one; every failure becomes one."""
        try:
            self._events = self._backend.chat(self._request)
            async for event in self._events:
                self._put(event)
                if isinstance(event, Terminal):
                    return
                if len(self._pending) >= _MAX_PENDING_EVENTS:
                    self._taken.clear()
                    await self._taken.wait()
            raise InvariantBroken("the backend's answer stopped without an end")
        except InvariantBroken as error:
            logger.exception("request %s failed", self._request.request_id)
            self._put(Failed(error=to_wire(error)))
        except KeepwarmError as error:
            self._put(Failed(error=to_wire(error)))
        except Exception as error:
            logger.exception("request %s failed", self._request.request_id)
            self._put(Failed(error=to_wire(InvariantBroken(f"the backend failed on {type(error).__name__}"))))

    async def take(self) -> list[ChatEvent]:
        """All that is pending; waits for the first."""
        await self._filled.wait()
        self._filled.clear()
        events, self._pending = self._pending, []
        self._taken.set()
        return events

    async def close(self) -> None:
        """The client is gone or has everything: the backend stops its work."""
        close = getattr(self._events, "aclose", None)  # an iterator need not have one
        if close is None:
            return
        try:
            await close()
        except Exception:
            logger.exception("request %s: closing the answer failed", self._request.request_id)

    def _put(self, event: ChatEvent) -> None:
        self._pending.append(event)
        self._filled.set()


async def _write(answer: _Answer, send: Send) -> None:
    while True:
        events = await answer.take()
        is_last = isinstance(events[-1], Terminal)
        piece = {"type": "http.response.body", "body": encode_events(events), "more_body": not is_last}
        async with asyncio.timeout(_WRITE_LIMIT_S):
            await send(piece)
        if is_last:
            return


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
