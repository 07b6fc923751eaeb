"""The HTTP server around the gateway: up on a socket of ours, down after a drain. No routes here."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import uvicorn

_KEEP_ALIVE_S = 120
"""An idle connection stays open this long: agents think for a minute between two turns."""


class HttpServer(uvicorn.Server):
    """uvicorn with its signals left to us, and an event when it answers."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # `keepwarm serve` handles them: there is more to end than this server

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_up.set()

    def cut_drain_short(self) -> None:
        """End the answers that still run."""
        self.force_exit = True


@contextlib.asynccontextmanager
async def http_server(
    app: Any, listener: socket.socket, *, drain_timeout_s: float
) -> AsyncIterator[HttpServer]:
    """Serves while the block runs. On leaving: no new connections, running answers get
    `drain_timeout_s` to end, then their connections are closed."""
    config = uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="auto",
        log_config=None,  # the gateway writes one line a request itself
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=math.ceil(drain_timeout_s),
    )
    server = HttpServer(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="gateway-http")
    up = asyncio.create_task(server.is_up.wait(), name="gateway-http-up")
    try:
        await asyncio.wait({serving, up}, return_when=asyncio.FIRST_COMPLETED)
        yield server
    finally:
        up.cancel()
        server.should_exit = True
        await serving
