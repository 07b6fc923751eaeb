"""`GET /events`: lines until the feed ends, its reader leaves, or the backend shuts down."""

from __future__ import annotations

import asyncio

from keepwarm.contract.event_feed import serve_feed
from keepwarm.contract.runtime import BackendApp
from keepwarm.core.errors import Overloaded
from tests.contract.asgi_client import AsgiClient
from tests.contract.fake_backend import PATIENCE_S, FakeBackend


class Feed:
    """Lines as the test says."""

    def __init__(self) -> None:
        self.lines: asyncio.Queue[bytes] = asyncio.Queue()
        self.closed_for: list[str] = []

    async def next(self) -> bytes:
        return await self.lines.get()

    def close(self, reason: str) -> None:
        self.closed_for.append(reason)
        self.lines.put_nowait(f"end: {reason}\n".encode())
        self.lines.put_nowait(b"")


class WatchedBackend(FakeBackend):
    def __init__(self) -> None:
        super().__init__()
        self.feed = Feed()

    def watch_events(self) -> Feed:
        return self.feed


async def test_lines_go_out_as_they_come_and_the_end_ends_the_answer() -> None:
    backend, client = WatchedBackend(), AsgiClient("GET", "/events")
    asking = asyncio.create_task(client.call(BackendApp(backend)))
    backend.feed.lines.put_nowait(b"one\n")
    await client.until_heard(1)
    assert dict(client.sent[0]["headers"])[b"content-type"] == b"application/x-ndjson"
    backend.feed.lines.put_nowait(b"two\n")
    backend.feed.lines.put_nowait(b"")
    await asking
    assert client.bodies == [b"one\n", b"two\n", b""]
    assert client.is_complete


async def test_a_reader_that_leaves_closes_its_feed() -> None:
    backend, client = WatchedBackend(), AsgiClient("GET", "/events")
    asking = asyncio.create_task(client.call(BackendApp(backend)))
    backend.feed.lines.put_nowait(b"one\n")
    await client.until_heard(1)
    client.go_away()
    await asking
    assert "the reader left" in backend.feed.closed_for


async def test_a_backend_that_shuts_down_says_so_and_waits_for_nobody() -> None:
    backend, client = WatchedBackend(), AsgiClient("GET", "/events")
    app = BackendApp(backend)
    asking = asyncio.create_task(client.call(app))
    backend.feed.lines.put_nowait(b"one\n")
    await client.until_heard(1)
    app.end_channels()
    await asking
    assert client.bodies[1] == b"end: the backend is shutting down\n"
    backend.feed, late = Feed(), AsgiClient("GET", "/events")
    await late.call(app)
    assert b"end: the backend is shutting down\n" in late.bodies


async def test_a_reader_that_takes_nothing_is_dropped() -> None:
    feed, client = Feed(), AsgiClient("GET", "/events")
    client.may_read.clear()
    feed.lines.put_nowait(b"one\n")
    async with asyncio.timeout(PATIENCE_S):
        await serve_feed(feed, client._receive, client._send, write_limit_s=0.01)
    assert client.bodies == []


async def test_what_the_backend_refuses_has_a_status() -> None:
    class Full(FakeBackend):
        def watch_events(self) -> Feed:
            raise Overloaded(message="readers enough", retry_after_s=1.0)

    client = AsgiClient("GET", "/events")
    await client.call(BackendApp(Full()))
    assert client.status == 429


async def test_a_backend_that_tells_no_events_says_so() -> None:
    client = AsgiClient("GET", "/events")
    await client.call(BackendApp(FakeBackend()))
    assert client.status == 404
