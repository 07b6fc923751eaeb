"""An ASGI app behind a Unix socket, as a backend process is."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Generator
from pathlib import Path
from typing import Any

import uvicorn


class SocketServer(uvicorn.Server):
    """uvicorn that says when it listens and leaves signals alone."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


@contextlib.asynccontextmanager
async def listening(app: Any, path: Path) -> AsyncIterator[SocketServer]:
    """Serves while the block runs."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    config = uvicorn.Config(
        app, log_config=None, lifespan="off", ws="none", timeout_graceful_shutdown=1, interface="asgi3"
    )
    server = SocketServer(config)
    serving = asyncio.create_task(server.serve([listener]))
    await server.is_up.wait()
    try:
        yield server
    finally:
        server.should_exit = True
        await serving
        listener.close()
