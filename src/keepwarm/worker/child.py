"""A backend process, as whoever started it sees it: start, wait until ready, watch, stop.

Knows a backend only by its settings (a mapping), its Unix socket and its exit status. The
child's standard input stays open as long as we live: its end tells the child that we died.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx
import msgspec

from keepwarm.core.errors import ErrorOnWire, InvariantBroken, ReplicaLost, SetupError

logger = logging.getLogger(__name__)

BACKEND_COMMAND = (sys.executable, "-P", "-m", "keepwarm", "backend")
"""-P: a folder's queue.py or types.py must not stand in for the standard library's."""
_SETUP_FAILED_STATUS = 2
_NUM_LOG_LINES = 20
_MAX_LINE_BYTES = 1 << 20
_POLL_S = 0.1
_POLL_LIMIT_S = 5.0
_KILL_LIMIT_S = 10.0
DEFAULT_STOP_LIMIT_S = 30.0
"""More than a backend takes to drain and close; then it is killed."""


class BackendChild:
    """One life of one backend process."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        *,
        command: Sequence[str] = BACKEND_COMMAND,
        on_log_line: Callable[[str], None] | None = None,
    ) -> None:
        """`settings`: those of `keepwarm backend`, among them `socket_path`."""
        self._settings = dict(settings)
        self._command = command
        self._on_log_line = on_log_line or (lambda line: logger.info("backend: %s", line))
        self._log_tail: deque[str] = deque(maxlen=_NUM_LOG_LINES)
        self._process: Process | None = None
        self._log_reader: asyncio.Task[None] | None = None

    @property
    def socket_path(self) -> str:
        return str(self._settings["socket_path"])

    @property
    def pid(self) -> int:
        return self._started().pid

    async def start(self) -> None:
        """Spawn it, in a process group of its own. Raises `SetupError`."""
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=PIPE,
                stdout=PIPE,
                stderr=STDOUT,
                start_new_session=True,
                limit=_MAX_LINE_BYTES,
            )
        except OSError as error:
            raise SetupError(f"the backend process could not be started: {error}") from error
        self._log_reader = asyncio.create_task(self._read_log(), name="backend log")
        if self._process.stdin is None:
            raise InvariantBroken("the backend process has no standard input")
        self._process.stdin.write(msgspec.json.encode(self._settings) + b"\n")

    async def wait_until_ready(self, limit_s: float) -> dict[str, Any]:
        """What it serves: the fields of its description. Raises `SetupError` with its own reason,
        or with its last log lines when it died or was too slow; it is stopped then."""
        try:
            async with asyncio.timeout(limit_s):
                return await self._poll_until_ready()
        except TimeoutError:
            await self.stop(0.0)
            raise SetupError(f"the backend was not ready within {limit_s:g} s{self._quoted_log()}") from None

    async def wait(self) -> int:
        """Until it ends, for whatever reason; its exit status (negative: the signal)."""
        return await self._started().wait()

    async def stop(self, limit_s: float = DEFAULT_STOP_LIMIT_S) -> int:
        """Ask it to end, wait, kill its whole group. Its exit status; nothing of it is left."""
        process = self._started()
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), limit_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        status = await asyncio.wait_for(process.wait(), _KILL_LIMIT_S)
        await self._end_log()
        return status

    async def _poll_until_ready(self) -> dict[str, Any]:
        transport = httpx.AsyncHTTPTransport(uds=self.socket_path)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://backend", timeout=_POLL_LIMIT_S, trust_env=False
        ) as client:
            while True:
                if self._started().returncode is not None:
                    raise await self._start_error()
                description = await _ask_ready(client)
                if description is not None:
                    return description
                await asyncio.sleep(_POLL_S)

    async def _start_error(self) -> SetupError:
        status = await self.stop(0.0)
        last_line = self._log_tail[-1] if self._log_tail else ""
        if status == _SETUP_FAILED_STATUS and last_line.startswith("error: "):
            return SetupError(last_line.removeprefix("error: "))
        return SetupError(f"the backend ended while starting (exit status {status}){self._quoted_log()}")

    async def _read_log(self) -> None:
        stream = self._started().stdout
        if stream is None:
            raise InvariantBroken("the backend process has no standard output")
        while True:
            try:
                raw = await stream.readline()
            except ValueError:  # a line over the limit: what was read of it is gone
                continue
            if not raw:
                return
            line = raw.decode(errors="replace").rstrip("\n")
            self._log_tail.append(line)
            self._on_log_line(line)

    async def _end_log(self) -> None:
        """Everything it wrote has been read, unless a grandchild holds the pipe open."""
        if self._log_reader is None:
            return
        await asyncio.wait({self._log_reader}, timeout=1.0)
        self._log_reader.cancel()
        await asyncio.gather(self._log_reader, return_exceptions=True)

    def _quoted_log(self) -> str:
        return "; its last log lines:\n" + "\n".join(f"  {line}" for line in self._log_tail)

    def _started(self) -> Process:
        if self._process is None:
            raise InvariantBroken("the backend process was not started")
        return self._process


async def _ask_ready(client: httpx.AsyncClient) -> dict[str, Any] | None:
    """None: not yet."""
    try:
        answer = await client.get("/ready")
    except httpx.HTTPError:
        return None  # it does not listen yet, or has just died
    if answer.status_code != 200:
        return None
    return msgspec.msgpack.decode(answer.content, type=dict[str, Any])


async def ask_why_not_ready(socket_path: str) -> str | None:
    """A running backend's reason for not serving; None: it serves. Raises `ReplicaLost`."""
    transport = httpx.AsyncHTTPTransport(uds=socket_path)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://backend", timeout=_POLL_LIMIT_S, trust_env=False
    ) as client:
        try:
            answer = await client.get("/ready")
        except httpx.HTTPError as error:
            raise ReplicaLost(f"the backend does not answer on {socket_path}: {error!r}") from error
    if answer.status_code == 200:
        return None
    error_on_wire = msgspec.msgpack.decode(answer.content, type=ErrorOnWire)
    return str(error_on_wire.fields.get("message", error_on_wire.code))
