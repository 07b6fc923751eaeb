"""One HTTP/1.1 request over a Unix socket, and its answer as it arrives.

A connection serves one request and is then closed, so that closing it is the abort.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar, cast

import httptools

from keepwarm.core.errors import NotReady

Connected = TypeVar("Connected", bound=asyncio.BaseProtocol)


class HttpConnection(asyncio.Protocol):
    """Bytes of the answer's body in order of arrival. One task waits on it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._pieces: list[bytes] = []
        self._waiter: asyncio.Future[None] | None = None
        self.status: int | None = None
        self.complete = False
        self.lost = False

    def send(self, request: bytes) -> None:
        """Write the whole request; it is buffered as far as the socket does not take it."""
        if self._transport is not None:
            self._transport.write(request)

    def take(self) -> bytes:
        """What came since the last call."""
        taken = b"".join(self._pieces)
        self._pieces.clear()
        return taken

    async def wait(self, wait_s: float) -> None:
        """Return when something happened, or after `wait_s`."""
        self._waiter = self._loop.create_future()
        timer = self._loop.call_later(wait_s, self._wake)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None

    def close(self) -> None:
        """Drop the connection at once and wake whoever waits."""
        self.lost = True
        if self._transport is not None:
            self._transport.abort()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # a stream socket's; uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._wake()

    # httptools

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        self.complete = True


async def connect(socket_path: str, connect_s: float, protocol: Callable[[], Connected]) -> Connected:
    """Raises `NotReady` when nobody listens there: nothing was asked, so nothing is lost."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(connect_s):
            _, connection = await loop.create_unix_connection(protocol, socket_path)
    except TimeoutError as error:
        raise NotReady(f"the backend took no connection within {connect_s:g} s") from error
    except OSError as error:
        raise NotReady(f"the backend is not there: {error.strerror or error}") from error
    return connection


def request_bytes(method: str, path: str, body: bytes, media_type: str) -> bytes:
    """A whole request. The answer ends the connection."""
    head = (
        f"{method} {path} HTTP/1.1\r\nhost: backend\r\nconnection: close\r\n"
        f"content-type: {media_type}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode("ascii") + body
