"""A rank in the front's own event loop: for tests, and for engines that do not compute.

The second implementation of `RankPort`; same engine loop, no process to lose.
"""

from __future__ import annotations

import asyncio
import logging

from keepwarm.backend.rank_engine import RETRY_S, RankEngine
from keepwarm.backend.rank_port import Listener, OpenTurns, RankState, RankView, RankWatcher, Watchers
from keepwarm.core.errors import EngineLost, NotReady
from keepwarm.core.ids import RequestId
from keepwarm.core.rank_messages import Abort, Cut, RankStats, Ready, Report, Submit
from keepwarm.core.session import NO_SESSION, SessionKey

logger = logging.getLogger(__name__)


class InProcessRank:
    """A step a turn of the loop, so that aborts are seen between steps as in a process."""

    def __init__(self, engine: RankEngine, ready: Ready, *, rank: int = 0) -> None:
        self._engine = engine
        self._rank = rank
        self.ready: Ready | None = ready
        self._ready = ready
        self._watchers = Watchers(rank)
        self._state: RankState = "loading"
        self._open = OpenTurns()
        self._inbox: list[Submit | Abort | Cut] = []
        self._woken = asyncio.Event()
        self._unready_reason: str | None = "the engine is loading"
        self._task: asyncio.Task[None] | None = None
        self.stats: RankStats | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="in-process rank")
        self._unready_reason = None
        self._state = "serving"
        self._watchers.serves(self._ready)

    def submit(self, turn: Submit, listener: Listener, *, session: SessionKey = NO_SESSION) -> None:
        if self._unready_reason is not None:
            raise NotReady(self._unready_reason)
        self._open.open(turn.request_id, listener)
        self._post(turn)

    def abort(self, request_id: RequestId) -> None:
        if request_id in self._open:
            self._post(Abort(request_id=request_id))

    def cut(self, request_id: RequestId, num_output_tokens: int) -> None:
        if request_id in self._open:
            self._post(Cut(request_id=request_id, num_output_tokens=num_output_tokens))

    def unready_reason(self) -> str | None:
        return self._unready_reason

    @property
    def ranks(self) -> tuple[RankView]:
        view = RankView(
            rank=self._rank, state=self._state, stats=self.stats, num_restarts=0, ready=self.ready
        )
        return (view,)

    def watch(self, watcher: RankWatcher) -> None:
        self._watchers.add(watcher)

    async def close(self) -> None:
        self._unready_reason = "the backend is shutting down"
        self._open.end_all(NotReady(self._unready_reason))
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._engine.close()

    def _post(self, message: Submit | Abort | Cut) -> None:
        self._inbox.append(message)
        self._woken.set()

    async def _run(self) -> None:
        try:
            while True:
                if not self._step():
                    self._woken.clear()
                    await self._wait()
                await asyncio.sleep(0)
        except Exception as error:
            logger.exception("the engine failed")
            self._unready_reason = f"the engine failed: {type(error).__name__}"
            self._state = "degraded"
            self._watchers.lost()
            self._open.deliver(self._engine.fail_all(error).events)
            self._open.end_all(EngineLost(self._unready_reason))

    def _step(self) -> bool:
        messages, self._inbox = self._inbox, []
        for message in messages:
            self._engine.handle(message)
        busy = self._engine.step(self._hear)
        self._hear(self._engine.report())
        return busy or bool(self._inbox)

    def _hear(self, report: Report) -> None:
        self.stats = report.stats
        self._watchers.cache_changed(report.cache)
        self._open.deliver(report.events)

    async def _wait(self) -> None:
        if self._engine.has_work:
            await asyncio.sleep(RETRY_S)
            return
        self._engine.check_when_idle()
        await self._woken.wait()
