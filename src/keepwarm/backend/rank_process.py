"""One rank in a process of its own: starts it, watches it, ends it, starts it again.

    loading ──Ready──▶ serving ──EOF, silence, broken stream──▶ lost ──delay──▶ loading
       │StartFailed, exit                                        │too often
       ▼                                                         ▼
    SetupError (first start) or lost                          degraded

Owns the process and what its turns are owed. Knows no text.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, assert_never

import msgspec

from keepwarm.backend.rank_engine import FINISH_COPIES_LIMIT_S
from keepwarm.backend.rank_link import AsyncLink
from keepwarm.backend.rank_port import Listener, OpenTurns, RankState, RankView, RankWatcher, Watchers
from keepwarm.backend.settings import BackendSettings
from keepwarm.core.errors import EngineLost, KeepwarmError, NotReady, SetupError, from_wire
from keepwarm.core.exit_status import describe_exit
from keepwarm.core.ids import RequestId
from keepwarm.core.rank_messages import (
    Abort,
    Cut,
    FromRank,
    Init,
    RankStats,
    Ready,
    Report,
    Shutdown,
    StartFailed,
    Submit,
)
from keepwarm.core.restarts import RestartLimits, Restarts
from keepwarm.core.session import NO_SESSION, SessionKey

logger = logging.getLogger(__name__)

_STOP_LIMIT_S = FINISH_COPIES_LIMIT_S + 5.0
"""A rank looks at its socket between steps, and lets copies end; one that takes longer is killed."""
_KILL_LIMIT_S = 10.0
_STDERR_FD = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLimits:
    """How long a front waits for its rank."""

    start_limit_s: float = 3600.0
    silence_limit_s: float = 120.0
    stop_limit_s: float = _STOP_LIMIT_S
    restarts: RestartLimits = field(default_factory=RestartLimits)


class RankProcess:
    """`RankPort` over `keepwarm.backend.rank_main`."""

    def __init__(
        self,
        settings: BackendSettings,
        *,
        hash_key: bytes,
        rank: int = 0,
        limits: RankLimits | None = None,
    ) -> None:
        self._init = Init(hash_key=hash_key, settings=msgspec.json.encode(settings), rank=rank)
        self._name = "the engine" if settings.ranks == 1 else f"the engine of rank {rank}"
        self._limits = limits or RankLimits(
            start_limit_s=settings.engine_start_limit_s, silence_limit_s=settings.engine_silence_limit_s
        )
        self._restarts = Restarts(self._limits.restarts)
        self._open = OpenTurns()
        self._life: _RankLife | None = None
        self._watchers = Watchers(rank)
        self._state: RankState = "loading"
        self._unready_reason: str | None = f"{self._name} is loading"
        self._supervisor: asyncio.Task[None] | None = None
        self.ready: Ready | None = None
        self.stats: RankStats | None = None
        self.num_restarts = 0

    @property
    def pid(self) -> int | None:
        """The process of the rank that serves or loads now."""
        return None if self._life is None else self._life.pid

    async def start(self) -> None:
        await self._start_life()
        self._supervisor = asyncio.create_task(self._supervise(), name="rank supervisor")

    def submit(self, turn: Submit, listener: Listener, *, session: SessionKey = NO_SESSION) -> None:
        if self._unready_reason is not None or self._life is None:
            raise NotReady(self._unready_reason or f"{self._name} is not there")
        self._open.open(turn.request_id, listener)
        self._life.link.send(turn)

    def abort(self, request_id: RequestId) -> None:
        if request_id in self._open and self._life is not None:
            self._life.link.send(Abort(request_id=request_id))

    def cut(self, request_id: RequestId, num_output_tokens: int) -> None:
        if request_id in self._open and self._life is not None:
            self._life.link.send(Cut(request_id=request_id, num_output_tokens=num_output_tokens))

    def unready_reason(self) -> str | None:
        return self._unready_reason

    @property
    def ranks(self) -> tuple[RankView]:
        view = RankView(
            rank=self._init.rank,
            state=self._state,
            stats=self.stats,
            num_restarts=self.num_restarts,
            ready=self.ready,
        )
        return (view,)

    def watch(self, watcher: RankWatcher) -> None:
        self._watchers.add(watcher)

    async def close(self) -> None:
        self._unready_reason = "the backend is shutting down"
        self._open.end_all(NotReady(self._unready_reason))
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        if self._life is not None:
            await self._life.stop(self._limits.stop_limit_s)

    async def _start_life(self) -> None:
        """Spawn and load; on any failure nothing is left of the process. Raises `SetupError`."""
        self._life = life = await _RankLife.spawn(self._init, self._on_report)
        try:
            self.ready = await life.wait_until_loaded(self._limits.start_limit_s)
        except BaseException:
            await life.kill()
            self._life = None
            raise
        self._unready_reason = None
        self._state = "serving"
        self._watchers.serves(self.ready)

    def _on_report(self, report: Report) -> None:
        self.stats = report.stats
        self._watchers.cache_changed(report.cache)
        self._open.deliver(report.events)

    async def _supervise(self) -> None:
        try:
            await self._keep_serving()
        except Exception as error:
            logger.exception("%s is no longer watched", self._name)
            self._unready_reason = f"{self._name} is no longer watched: {type(error).__name__}"
            self._state = "degraded"
            self._watchers.lost()
            self._open.end_all(EngineLost(self._unready_reason))

    async def _keep_serving(self) -> None:
        """Returns when the rank was lost too often."""
        loop = asyncio.get_running_loop()
        why: str | None = None
        while True:
            if why is None:
                why = await self._serve_until_lost()
            delay_s = self._restarts.delay_after_loss(loop.time())
            if delay_s is None:
                limits = self._restarts.limits
                self._state = "degraded"
                self._unready_reason = (
                    f"{self._name} was lost {limits.max_losses} times within {limits.window_s:.0f} s "
                    f"and is left stopped; the last time {why}"
                )
                logger.error("%s", self._unready_reason)
                return
            logger.warning("%s was lost (%s): starting it again in %.1f s", self._name, why, delay_s)
            await asyncio.sleep(delay_s)
            why = await self._try_restart()

    async def _serve_until_lost(self) -> str:
        """Watch the running rank to its end; its turns are ended and its process is gone after."""
        assert self._life is not None  # only called while one runs
        life = self._life
        why = await life.wait_until_lost(self._limits.silence_limit_s)
        self._unready_reason = f"{self._name} was lost ({why}) and is being started again"
        self._state = "lost"
        self._watchers.lost()
        self._open.end_all(EngineLost(f"{self._name} was lost: {why}"))
        how = await life.kill()
        self._life = None
        return f"{why}: {how}"

    async def _try_restart(self) -> str | None:
        """None: it serves again; else why it does not."""
        self.num_restarts += 1
        self._state = "loading"
        try:
            await self._start_life()
        except KeepwarmError as error:
            self._state = "lost"
            return f"it could not be started: {error}"
        logger.info("%s serves again", self._name)
        return None


_THREADS_SLEEP = {"OMP_WAIT_POLICY": "PASSIVE"}
"""CPU threads that wait for each other sleep instead of spinning: as fast alone as two runs can
tell, and many times faster when anything else wants a core (docs/log.md). What the environment
says already stays."""


class _RankLife:
    """One process, from spawn to its reaping."""

    def __init__(self, process: Process, on_report: Callable[[Report], None]) -> None:
        self._process = process
        self._on_report = on_report
        self._loaded: asyncio.Future[Ready | SetupError] = asyncio.get_running_loop().create_future()
        self._killed = False
        self.link: AsyncLink

    @classmethod
    async def spawn(cls, init: Init, on_report: Callable[[Report], None]) -> _RankLife:
        ours, theirs = socket.socketpair()
        # -P: a folder's queue.py or types.py must not stand in for the standard library's
        command = (sys.executable, "-P", "-m", "keepwarm.backend.rank_main", "--fd", str(theirs.fileno()))
        with theirs:
            try:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=DEVNULL,
                    stdout=_STDERR_FD,
                    pass_fds=(theirs.fileno(),),
                    env=_THREADS_SLEEP | os.environ,
                )
            except OSError as error:
                ours.close()
                raise SetupError(f"the engine's process could not be started: {error}") from error
            except BaseException:
                ours.close()
                raise
        life = cls(process, on_report)
        try:
            life.link = await AsyncLink.over(ours, life._on_message)
        except BaseException:  # given up meanwhile: nobody else knows of the process yet
            ours.close()
            process.kill()
            await process.wait()
            raise
        life.link.send(init)
        return life

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait_until_loaded(self, limit_s: float) -> Ready:
        """Raises `SetupError`: the rank's own, or ours when it died or took too long."""
        closed = self.link.closed
        either: set[asyncio.Future[Any]] = {self._loaded, closed}
        await asyncio.wait(either, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if self._loaded.done():
            loaded = self._loaded.result()
            if isinstance(loaded, SetupError):
                raise loaded
            return loaded
        if not closed.done():
            raise SetupError(f"the engine has not loaded its model within {limit_s:.0f} s: killed")
        raise SetupError(f"the engine's process died while loading: {await self.kill()}")

    async def wait_until_lost(self, silence_limit_s: float) -> str:
        """Why. Returns at end of file, on a broken stream, or after too long a silence."""
        loop = asyncio.get_running_loop()
        while True:
            silent_s = loop.time() - self.link.heard_at_s
            if silent_s > silence_limit_s:
                return f"it was silent for {silent_s:.0f} s (limit {silence_limit_s:g} s)"
            wait_s = silence_limit_s - silent_s + 0.01
            done, _pending = await asyncio.wait({self.link.closed}, timeout=wait_s)
            if done:
                error = self.link.closed.result()
                return "its process ended" if error is None else f"its stream broke: {error}"

    async def stop(self, limit_s: float) -> None:
        """Ask, wait, kill."""
        self.link.send(Shutdown())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), limit_s)
        await self.kill()

    async def kill(self) -> str:
        """End it now, whatever it does; once it is reaped, says how it ended."""
        self.link.close()
        if self._process.returncode is None and self.link.closed.done():
            with contextlib.suppress(TimeoutError):  # it is ending: leave it its own status
                await asyncio.wait_for(self._process.wait(), 1.0)
        if self._process.returncode is None:
            self._killed = True
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        status = await asyncio.wait_for(self._process.wait(), _KILL_LIMIT_S)
        return "killed" if self._killed else describe_exit(status)

    def _on_message(self, message: FromRank) -> None:
        match message:
            case Report():
                self._on_report(message)
            case Ready():
                self._loaded.set_result(message)
            case StartFailed():
                error = from_wire(message.error)
                self._loaded.set_result(error if isinstance(error, SetupError) else SetupError(str(error)))
            case _:
                assert_never(message)
