"""A process of ours, as whoever started it sees it: start, wait until ready, watch, stop.

Knows it only by its settings (a mapping, sent as one line of JSON) and its exit status; whether it
is ready, its kind says. Its standard input stays open as long as we live: the end tells it that we
died.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from abc import ABC, abstractmethod
from asyncio.subprocess import PIPE, STDOUT, Process, SubprocessStreamProtocol
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar

import msgspec
import psutil

from keepwarm.core.errors import InvariantBroken, SetupError
from keepwarm.core.exit_status import describe_exit

logger = logging.getLogger(__name__)

_REFUSED_STATUS = 2
"""With these settings it will never start."""
_FAILED_STATUS = 3
"""Not this time: something else may be in the way, such as memory that is still taken."""
_NUM_LOG_LINES = 20
_MAX_LINE_BYTES = 1 << 20
_POLL_S = 0.1
_KILL_LIMIT_S = 10.0
DEFAULT_STOP_LIMIT_S = 30.0
"""More than a process of ours takes to drain and close; then it is killed."""

Description = TypeVar("Description")


def keepwarm_command(name: str) -> tuple[str, ...]:
    """-P: a folder's queue.py or types.py must not stand in for the standard library's."""
    return (sys.executable, "-P", "-m", "keepwarm", name)


class StartFailed(SetupError):
    """It ended while starting, or took too long. `reason` leaves its log lines out."""

    def __init__(self, reason: str, log: str = "") -> None:
        super().__init__(reason + log)
        self.reason = reason


class StartRefused(StartFailed):
    """It said itself why it cannot start; with the same settings it would say so again."""


class ChildProcess(ABC, Generic[Description]):
    """One life of one process."""

    def __init__(
        self,
        name: str,
        settings: Mapping[str, Any],
        *,
        command: Sequence[str],
        on_log_line: Callable[[str], None] | None = None,
    ) -> None:
        """`name`: what it is, in sentences ("backend")."""
        self.name = name
        self._settings = dict(settings)
        self._command = command
        self._on_log_line = on_log_line or (lambda line: logger.info("%s: %s", name, line))
        self._log_tail: deque[str] = deque(maxlen=_NUM_LOG_LINES)
        self._process: Process | None = None
        self._has_ended = asyncio.Event()
        self._log_reader: asyncio.Task[None] | None = None

    @abstractmethod
    def asking(self) -> AbstractAsyncContextManager[Callable[[], Awaitable[Description | None]]]:
        """Gives a function that asks it once what it serves; None: it is not ready yet."""

    @property
    def has_started(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int:
        return self._started().pid

    async def start(self) -> None:
        """Spawn it, in a process group of its own. Raises `SetupError`. Cancelled, it leaves nothing."""
        spawning = asyncio.create_task(self._spawn(), name=f"spawn {self.name}")
        try:
            self._process = await asyncio.shield(spawning)
        except asyncio.CancelledError:
            with contextlib.suppress(OSError):
                self._process = await spawning
                await self.stop(0.0)
            raise
        except OSError as error:
            raise SetupError(f"the {self.name} process could not be started: {error}") from error
        self._log_reader = asyncio.create_task(self._read_log(), name=f"{self.name} log")
        if self._process.stdin is None:
            raise InvariantBroken(f"the {self.name} process has no standard input")
        with contextlib.suppress(RuntimeError):  # uvloop's word for a pipe whose reader has died already
            self._process.stdin.write(msgspec.json.encode(self._settings) + b"\n")

    async def wait_until_ready(self, limit_s: float) -> Description:
        """What it serves. Raises `StartRefused` with its own reason, or `StartFailed` with its last
        log lines when it died or was too slow; it is stopped then."""
        try:
            async with asyncio.timeout(limit_s):
                return await self._poll_until_ready()
        except TimeoutError:
            await self.stop(0.0)
            raise StartFailed(
                f"the {self.name} was not ready within {limit_s:g} s", self._quoted_log()
            ) from None

    async def wait(self) -> int:
        """Until it ends, for whatever reason; its exit status (negative: the signal)."""
        process = self._started()
        await self._has_ended.wait()
        return _status(process)

    async def stop(self, limit_s: float = DEFAULT_STOP_LIMIT_S) -> int:
        """Ask it to end, wait, kill its whole group. Its exit status; nothing of it is left."""
        process = self._started()
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.wait(), limit_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        status = await asyncio.wait_for(self.wait(), _KILL_LIMIT_S)
        await self._wait_for_group()
        await self._end_log()
        return status

    async def _spawn(self) -> Process:
        """What `asyncio.create_subprocess_exec` does, whose `wait` however does not return while a
        grandchild holds a pipe open."""
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.subprocess_exec(
            lambda: _Watched(self._has_ended, loop),
            *self._command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=STDOUT,
            start_new_session=True,
        )
        return Process(transport, protocol, loop)

    async def _poll_until_ready(self) -> Description:
        async with self.asking() as ask:
            while True:
                if self._started().returncode is not None:
                    raise await self._start_error()
                description = await ask()
                if description is not None:
                    return description
                await asyncio.sleep(_POLL_S)

    async def _start_error(self) -> StartFailed:
        status = await self.stop(0.0)
        last_line = self._log_tail[-1] if self._log_tail else ""
        if status in (_REFUSED_STATUS, _FAILED_STATUS) and last_line.startswith("error: "):
            kind = StartRefused if status == _REFUSED_STATUS else StartFailed
            return kind(last_line.removeprefix("error: "))
        how = describe_exit(status)
        return StartFailed(f"the {self.name} ended while starting ({how})", self._quoted_log())

    async def _wait_for_group(self) -> None:
        """Those that it started have been killed; their memory is free once they are gone."""
        group = self._started().pid
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_KILL_LIMIT_S):
                while _lives(group):  # noqa: ASYNC110 - no event tells of those that are not our own children
                    await asyncio.sleep(_POLL_S)

    async def _read_log(self) -> None:
        stream = self._started().stdout
        if stream is None:
            raise InvariantBroken(f"the {self.name} process has no standard output")
        while True:
            try:
                raw = await stream.readline()
            except ValueError:  # a line over the limit: what was read of it is gone
                continue
            if not raw:
                return
            self.hear(raw.decode(errors="replace").rstrip("\n"))

    def hear(self, line: str) -> None:
        """A line that it wrote, to standard output or error."""
        self._log_tail.append(line)
        with contextlib.suppress(OSError):  # a log that cannot be written must not stop its reading
            self._on_log_line(line)

    async def _end_log(self) -> None:
        """Everything it wrote has been read, unless a grandchild holds the pipe open."""
        if self._log_reader is None:
            return
        await asyncio.wait({self._log_reader}, timeout=1.0)
        self._log_reader.cancel()
        await asyncio.gather(self._log_reader, return_exceptions=True)

    def _quoted_log(self) -> str:
        if not self._log_tail:
            return "; it has written nothing yet"
        return "; its last log lines:\n" + "\n".join(f"  {line}" for line in self._log_tail)

    def _started(self) -> Process:
        if self._process is None:
            raise InvariantBroken(f"the {self.name} process was not started")
        return self._process


class _Watched(SubprocessStreamProtocol):
    def __init__(self, has_ended: asyncio.Event, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=_MAX_LINE_BYTES, loop=loop)
        self._has_ended = has_ended

    def process_exited(self) -> None:
        super().process_exited()
        self._has_ended.set()


def _status(process: Process) -> int:
    if process.returncode is None:
        raise InvariantBroken("a process that has ended has no exit status")
    return process.returncode


def _lives(group: int) -> bool:
    """Whether a process of this group still runs. One that only waits to be reaped holds nothing."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return any(_runs_in(group, pid) for pid in psutil.pids())


def _runs_in(group: int, pid: int) -> bool:
    try:
        return os.getpgid(pid) == group and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, PermissionError, psutil.Error):
        return False
