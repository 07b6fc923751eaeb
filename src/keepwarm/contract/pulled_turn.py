"""A turn of a backend that is asked for its events: the task that asks, and what failures become."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

from keepwarm.chat.events import ChatEvent, Failed, Terminal
from keepwarm.chat.request import ChatRequest
from keepwarm.contract.backend import Backend, Tell
from keepwarm.core.errors import InvariantBroken, KeepwarmError, to_wire
from keepwarm.core.ids import RequestId

logger = logging.getLogger(__name__)

_MAX_UNREAD_EVENTS = 1024
"""Beyond this the backend is not asked for more until what it said has been taken."""


class PulledTurn:
    """An `OpenTurn` over `Backend.chat`. Its events are told as they come, and counted until the
    listener says that they have been taken."""

    def __init__(self, backend: Backend, request: ChatRequest, tell: Tell) -> None:
        self._backend = backend
        self._request = request
        self._tell = tell
        self._num_unread = 0
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._is_closing = False
        self.task = asyncio.create_task(self._run(), name=f"answer {request.request_id}")
        """Done when the backend's iterator is closed."""

    def taken(self) -> None:
        """Everything that was told so far is on its way."""
        self._num_unread = 0
        self._has_room.set()

    def close(self) -> None:
        if not self._is_closing:  # a backend that releases something is not interrupted
            self.task.cancel()

    async def _run(self) -> None:
        events: AsyncIterator[ChatEvent] | None = None
        try:
            events = self._backend.chat(self._request)
            await self._pump(events)
        except Exception as error:
            self._tell((failure_of(error, self._request.request_id),))
        finally:
            await self._close(events)

    async def _pump(self, events: AsyncIterator[ChatEvent]) -> None:
        async for event in events:
            self._num_unread += 1
            self._tell((event,))
            if isinstance(event, Terminal):
                return
            if self._num_unread >= _MAX_UNREAD_EVENTS:
                self._has_room.clear()
                await self._has_room.wait()
        raise InvariantBroken("the backend's answer stopped without an end")

    async def _close(self, events: AsyncIterator[ChatEvent] | None) -> None:
        self._is_closing = True
        close = getattr(events, "aclose", None)  # an iterator need not have one
        if close is None:
            return
        try:
            await close()
        except Exception:
            logger.exception("request %s: closing the answer failed", self._request.request_id)


def failure_of(error: Exception, request_id: RequestId) -> Failed:
    """What a client is told of it; what is our own mistake is logged with where it happened."""
    if isinstance(error, KeepwarmError) and not isinstance(error, InvariantBroken):
        return Failed(error=to_wire(error))
    logger.error("request %s failed", request_id, exc_info=error)
    if not isinstance(error, InvariantBroken):
        error = InvariantBroken(f"the backend failed on {type(error).__name__}")
    return Failed(error=to_wire(error))
