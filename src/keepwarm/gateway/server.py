"""The gateway behind uvicorn, with a shutdown that lets answers finish."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from collections.abc import Generator

import uvicorn

from keepwarm.gateway.app import Gateway

_AFTER_DRAIN_S = 5
_KEEP_ALIVE_S = 120
"""An idle connection stays open this long: agents think for a minute between two turns."""


class GatewayServer(uvicorn.Server):
    """Serves on a socket that the caller has bound; signals are the caller's too.

    `await serve(sockets=[...])` returns after `stop()`, once every answer has ended: finished within
    the settings' `drain_s`, or with its dialect's error event.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.is_up = asyncio.Event()
        drain_s = gateway.settings.drain_s
        super().__init__(
            uvicorn.Config(
                gateway,
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=math.ceil(drain_s) + _AFTER_DRAIN_S,
            )
        )

    def stop(self) -> None:
        """Begin the shutdown. Safe to call from a signal handler of the loop, more than once."""
        self.should_exit = True

    def cut_short(self) -> None:
        """During the shutdown: wait no longer, end the answers that still run."""
        self._gateway.end_answers()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then set `is_up`."""
        await super().startup(sockets)
        self.is_up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Signals belong to the composition root, which also has children to stop."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the listening sockets, then wait for the answers."""
        drain = asyncio.create_task(self._gateway.drain(self._gateway.settings.drain_s), name="drain")
        try:
            await super().shutdown(sockets)
        finally:
            drain.cancel()
            await asyncio.wait({drain})
