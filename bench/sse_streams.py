"""Many streamed answers read over plain sockets, and a bare server to compare with.

The reader does as little as it can, since it shares the machine with what it measures: it counts the
tokens of each stream and notes when they came. Run as a program, this is the bare server: uvicorn on
uvloop, an ASGI function and nothing else, that writes one event a stream and step, in the bytes that
`/v1/messages` would.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import socket
import time
from array import array
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, cast

import uvicorn

_TEXT = re.compile(rb'"text":"([^"]*)"')
_WORDS = ("river", "house", "green", "light", "small")
"""Each is one token of the embedded model with the blank before it, and no markup."""


def spoken(num_tokens: int) -> str:
    """Words of a token each: as many blanks as tokens, so that a reader can count them."""
    return "".join(f" {_WORDS[number % len(_WORDS)]}" for number in range(num_tokens))


class SseStream(asyncio.Protocol):
    """One request, and the instants at which the tokens of its answer came."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._rest = b""
        self._transport: asyncio.Transport | None = None
        self.came_at = array("d")
        """On the monotonic clock, one a token."""
        self.has_ended = False
        self.head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        if not self.head:
            self.head = data[:200]
        data = self._rest + data
        whole, separator, self._rest = data.rpartition(b"\n\n")
        for text in _TEXT.findall(whole + separator):
            for _ in range(text.count(b" ")):
                self.came_at.append(now)
        if b"event: message_stop" in whole or b"event: error" in whole:
            self.has_ended = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.has_ended = True

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def open_streams(host: str, port: int, key: str, *, count: int, max_tokens: int) -> list[SseStream]:
    """That many, opened a few at a time so that no queue of the system runs over."""
    loop = asyncio.get_running_loop()
    streams: list[SseStream] = []
    for number in range(count):
        request = _request(host, key, number, max_tokens)
        _, stream = await loop.create_connection(lambda request=request: SseStream(request), host, port)  # type: ignore[misc]
        streams.append(stream)
        if number % 20 == 19:
            await asyncio.sleep(0.05)
    return streams


def _request(host: str, key: str, number: int, max_tokens: int) -> bytes:
    messages = [{"role": "user", "content": f"Speak, number {number}."}]
    body = {"model": "default", "max_tokens": max_tokens, "stream": True, "messages": messages}
    raw = json.dumps(body).encode()
    head = (
        f"POST /v1/messages HTTP/1.1\r\nhost: {host}\r\nx-api-key: {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n"
    )
    return head.encode() + raw


class BareApp:
    """An event a stream and step, and no more."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._tick = asyncio.Event()
        self._ticking: asyncio.Task[None] | None = None

    async def __call__(
        self,
        scope: dict[str, Any],
        receive: Callable[[], Coroutine[Any, Any, dict[str, Any]]],
        send: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        if self._ticking is None:
            self._ticking = asyncio.create_task(self._keep_ticking(), name="ticks")
        await receive()
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        gone = asyncio.create_task(receive(), name="gone")
        number = 0
        while not gone.done():
            await self._tick.wait()
            await send({"type": "http.response.body", "body": _event(number), "more_body": True})
            number += 1

    async def _keep_ticking(self) -> None:
        number = int(time.monotonic() // self._step_s)
        while True:
            number += 1
            await asyncio.sleep(max(0.0, number * self._step_s - time.monotonic()))
            ticked, self._tick = self._tick, asyncio.Event()
            ticked.set()


def _event(number: int) -> bytes:
    return (
        b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":'
        b'{"type":"text_delta","text":" %s"}}\n\n' % _WORDS[number % len(_WORDS)].encode()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="The bare server.")
    parser.add_argument("--fd", type=int, required=True, help="the listening socket")
    parser.add_argument("--step-ms", type=float, required=True)
    arguments = parser.parse_args()
    config = uvicorn.Config(
        BareApp(arguments.step_ms / 1000),
        http="httptools",
        loop="uvloop",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=0,
    )
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=arguments.fd)])


if __name__ == "__main__":
    main()
