"""A backend's life: listen, set up, serve, drain, close.

Listens before the model is loaded, so that whoever waits can ask `/ready` for the reason.
Owns the Unix socket; knows no route.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import uvicorn

from keepwarm.contract.backend import Backend
from keepwarm.contract.runtime import BackendApp
from keepwarm.core.errors import BadSetting, PortInUse

logger = logging.getLogger(__name__)

_MAX_SOCKET_PATH_BYTES = 107  # sun_path holds 108 with its closing zero
_DRAIN_LIMIT_S = 5.0
"""How long open answers may go on after a request to stop."""
_CLOSE_LIMIT_S = 20.0


async def serve_backend(
    backend: Backend,
    socket_path: str,
    parent_gone: Callable[[], Awaitable[None]] | None = None,
    *,
    drain_limit_s: float = _DRAIN_LIMIT_S,
) -> None:
    """Run until SIGTERM, SIGINT or the parent's death. Raises `SetupError`.

    A first signal lets open answers go on for `drain_limit_s`; a second one, or the parent's
    death, ends them at once. Every answer gets its terminal event.
    """
    listener = listen_on(socket_path)
    app = BackendApp(backend)
    server = _Server(_uvicorn_config(app))
    stop = _Stop()
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="http server")
    watching = asyncio.create_task(stop.watch(parent_gone), name="parent watch")
    try:
        with stop.on_signals():
            if await _set_up(backend, app, stop):
                await _serve_until_stopped(app, stop, serving)
            app.refusal = "the backend is shutting down"
            app.end_channels()
            server.should_exit = True
            await _drain(serving, stop, drain_limit_s)
    finally:
        app.end_channels()
        server.should_exit = True
        watching.cancel()
        await _close(backend, serving)
        await asyncio.gather(serving, watching, return_exceptions=True)
        listener.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(socket_path)


class _Stop:
    """Why and how fast to stop."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.at_once = asyncio.Event()

    def ask(self) -> None:
        if self.asked.is_set():
            self.at_once.set()
        self.asked.set()

    async def watch(self, parent_gone: Callable[[], Awaitable[None]] | None) -> None:
        if parent_gone is None:
            return
        await parent_gone()
        logger.info("the parent process is gone: ending")
        self.asked.set()
        self.at_once.set()

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        handled = (signal.SIGTERM, signal.SIGINT)
        for number in handled:
            loop.add_signal_handler(number, self.ask)
        try:
            yield
        finally:
            for number in handled:
                loop.remove_signal_handler(number)


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours: uvicorn would raise them again after a clean end."""
        yield


def _uvicorn_config(app: BackendApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        timeout_keep_alive=75,
        server_header=False,
        date_header=False,
    )


async def _set_up(backend: Backend, app: BackendApp, stop: _Stop) -> bool:
    """False: asked to stop while loading."""
    setup = asyncio.create_task(backend.setup(), name="backend setup")
    asked = asyncio.create_task(stop.asked.wait(), name="stop while loading")
    try:
        await asyncio.wait({setup, asked}, return_when=asyncio.FIRST_COMPLETED)
        if not setup.done():
            return False
        setup.result()
        _leave_alone_what_lives_forever()
        app.refusal = None
        return True
    finally:
        for task in (setup, asked):
            task.cancel()
        await asyncio.gather(setup, asked, return_exceptions=True)


def _leave_alone_what_lives_forever() -> None:
    """Modules, vocabularies and templates: going through them on each collection of old objects holds
    every stream up for tens of milliseconds."""
    gc.freeze()


async def _serve_until_stopped(app: BackendApp, stop: _Stop, serving: asyncio.Task[None]) -> None:
    asked = asyncio.create_task(stop.asked.wait(), name="stop")
    try:
        await asyncio.wait({asked, serving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        asked.cancel()
    if serving.done():
        serving.result()


async def _drain(serving: asyncio.Task[None], stop: _Stop, limit_s: float) -> None:
    """Let open answers go on for a while; the server's task ends when none is left."""
    at_once = asyncio.create_task(stop.at_once.wait(), name="stop at once")
    try:
        await asyncio.wait({at_once, serving}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        at_once.cancel()


async def _close(backend: Backend, serving: asyncio.Task[None]) -> None:
    """Open answers end as failed, then their connections do."""
    try:
        await asyncio.wait_for(backend.close(), _CLOSE_LIMIT_S)
    except Exception:
        logger.exception("closing the backend failed")
    _done, pending = await asyncio.wait({serving}, timeout=_CLOSE_LIMIT_S)
    if pending:
        logger.warning("connections did not end within %s s: dropped", _CLOSE_LIMIT_S)
        serving.cancel()


def listen_on(socket_path: str) -> socket.socket:
    """A Unix socket only its owner may use. Raises `PortInUse` and `BadSetting`.

    A socket file that nobody listens on is what a killed backend left: it is replaced.
    """
    num_bytes = len(os.fsencode(socket_path))
    if num_bytes > _MAX_SOCKET_PATH_BYTES:
        raise BadSetting(
            f"socket_path {socket_path!r} has {num_bytes} bytes; the system allows {_MAX_SOCKET_PATH_BYTES}: "
            "choose a shorter --data-dir"
        )
    _remove_stale(socket_path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(socket_path)
        os.chmod(socket_path, 0o600)  # before listen(): nobody can have connected
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise BadSetting(f"socket_path {socket_path!r} cannot be listened on: {error}") from error
    listener.setblocking(False)
    return listener


def _remove_stale(socket_path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(socket_path)
        except OSError as error:
            if error.errno == errno.ECONNREFUSED:
                os.unlink(socket_path)
            return
    raise PortInUse(f"another process listens on {socket_path}")
