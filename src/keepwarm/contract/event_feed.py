"""What a backend tells whoever watches it: lines, for as long as the watcher keeps up.

Owns the HTTP answer of `GET /events`; what the lines say is the backend's business.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

logger = logging.getLogger(__name__)

_WRITE_LIMIT_S = 60.0
"""A watcher that takes nothing for this long is dropped without a last line."""

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class EventFeed(Protocol):
    """One watcher's lines. Bounded: of one that does not keep up the rest is forgotten."""

    async def next(self) -> bytes:
        """More whole lines, once there are some; empty: the last one was told."""

    def close(self, reason: str) -> None:
        """Nothing is told any more but a last line, which says why. The first reason counts."""


async def serve_feed(
    feed: EventFeed, receive: Receive, send: Send, *, write_limit_s: float = _WRITE_LIMIT_S
) -> None:
    """The body of an answer whose head was sent. Returns when the feed ended or its watcher left."""
    telling = asyncio.create_task(_tell(feed, send, write_limit_s), name="events")
    leaving = asyncio.create_task(_until_gone(receive), name="watch for the events' reader to go")
    try:
        await asyncio.wait({telling, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        feed.close("the reader left")
        for task in (telling, leaving):
            task.cancel()
        await asyncio.gather(telling, leaving, return_exceptions=True)
    if not telling.cancelled() and (error := telling.exception()) is not None:
        logger.warning("a reader of events is dropped: %r", error)


async def _tell(feed: EventFeed, send: Send, write_limit_s: float) -> None:
    while piece := await feed.next():
        async with asyncio.timeout(write_limit_s):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
