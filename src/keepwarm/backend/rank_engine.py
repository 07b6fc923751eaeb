"""One rank: a scheduler and an executor, moved on one step at a time by one thread.

Owns the order of plan, submit, collect and commit. Knows no socket and no process, so that
a rank process and the in-process rank run the same code.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol, assert_never

from keepwarm.core.errors import EngineLost, KeepwarmError, to_wire
from keepwarm.core.ids import RequestId
from keepwarm.core.rank_messages import (
    Abort,
    Admitted,
    CacheEvent,
    Cut,
    Ended,
    EndReason,
    RankStats,
    Report,
    Submit,
    Tokens,
)
from keepwarm.core.step import Executor, StepId, StepPlan, StepResult

logger = logging.getLogger(__name__)

FINISH_COPIES_LIMIT_S = 10.0
RETRY_S = 0.01
"""After a plan that held no work although something waits."""


class SchedulerPort(Protocol):
    """What a rank asks of `keepwarm.sched.scheduler.Scheduler`."""

    @property
    def has_work(self) -> bool: ...
    @property
    def has_events(self) -> bool: ...
    @property
    def has_copies(self) -> bool: ...
    def submit(self, turn: Submit) -> None: ...
    def abort(self, request_id: RequestId) -> None: ...
    def cut(self, request_id: RequestId, num_output_tokens: int) -> None: ...
    def plan(self, now_s: float) -> StepPlan: ...
    def commit(self, result: StepResult) -> None: ...
    def take_events(self) -> tuple[Admitted | Tokens | Ended, ...]: ...
    def take_cache_events(self) -> tuple[CacheEvent, ...]: ...
    def end_all(self, reason: EndReason, error: KeepwarmError | None = None) -> None: ...
    def stats(self) -> RankStats: ...
    def check_integrity(self) -> None: ...


class RankEngine:
    """All calls come from one thread."""

    def __init__(
        self,
        *,
        scheduler: SchedulerPort,
        executor: Executor,
        clock: Callable[[], float] = time.monotonic,
        max_steps_in_flight: int = 1,
        close_host: Callable[[], None] | None = None,
    ) -> None:
        """`close_host`: gives host memory back, once the executor does not use it any more."""
        self._scheduler = scheduler
        self._executor = executor
        self._clock = clock
        self._max_steps_in_flight = max_steps_in_flight
        self._close_host = close_host
        self._in_flight: deque[StepId] = deque()
        self._preparing: dict[RequestId, Submit] = {}  # their grammars are being compiled
        self._ended_early: list[Ended] = []
        self._host_tier = scheduler.stats().host_tier

    @property
    def has_work(self) -> bool:
        """Something is in flight, runs or waits."""
        return self._scheduler.has_work or bool(self._preparing or self._ended_early)

    def handle(self, message: Submit | Abort | Cut) -> None:
        """Seen by the next plan."""
        match message:
            case Submit(grammar=None):
                self._scheduler.submit(message)
            case Submit():
                self._preparing[message.request_id] = message
                self._submit_prepared()
            case Abort() if self._preparing.pop(message.request_id, None):
                self._end_early(message.request_id, "aborted", None)
            case Abort():
                self._scheduler.abort(message.request_id)
            case Cut():
                self._scheduler.cut(message.request_id, message.num_output_tokens)
            case _:
                assert_never(message)

    def step(self, tell: Callable[[Report], None]) -> bool:
        """Submit as many plans as may be in flight, then collect and commit the oldest.

        What a plan itself decides (a turn is admitted) is told before it is computed, which may
        take seconds; everything else waits for the caller's `report`.

        False: there was nothing to compute, so the caller should wait for a message, and no
        longer than `RETRY_S` while there is work.
        """
        self._submit_prepared()
        while self._scheduler.has_work and len(self._in_flight) < self._max_steps_in_flight:
            plan = self._scheduler.plan(self._clock())
            if self._scheduler.has_events:
                tell(self.report())
            self._in_flight.append(self._executor.submit(plan))
            if not plan.works:  # nor would another plan have any until everything is committed
                return self._commit_all() or plan.awaits_copy
        if not self._in_flight:
            return False
        self._commit_oldest()
        return True

    def _submit_prepared(self) -> None:
        """Queue the turns whose grammar is there, so that no step waits for one; end those whose
        grammar cannot be enforced."""
        for request_id, turn in list(self._preparing.items()):
            try:
                is_ready = turn.grammar is None or self._executor.prepare(turn.grammar)
            except KeepwarmError as error:
                del self._preparing[request_id]
                self._end_early(request_id, "failed", error)
                continue
            if is_ready:
                del self._preparing[request_id]
                self._scheduler.submit(turn)

    def _end_early(self, request_id: RequestId, reason: EndReason, error: KeepwarmError | None) -> None:
        wire = None if error is None else to_wire(error)
        self._ended_early.append(Ended(request_id=request_id, reason=reason, error=wire))

    def _commit_all(self) -> bool:
        """Whether anything but the last, which is empty, was in flight."""
        num_with_work = len(self._in_flight) - 1
        while self._in_flight:
            self._commit_oldest()
        return num_with_work > 0

    def _commit_oldest(self) -> None:
        self._in_flight.popleft()
        self._scheduler.commit(self._executor.collect())

    def report(self) -> Report:
        """What has happened since the last report."""
        ended, self._ended_early = self._ended_early, []
        stats = self._scheduler.stats()
        if stats.host_tier != self._host_tier:
            self._say_host_tier(stats.host_tier)
        events = (*ended, *self._scheduler.take_events())
        return Report(events=events, stats=stats, cache=self._scheduler.take_cache_events())

    def _say_host_tier(self, state: str) -> None:
        self._host_tier = state
        if state != "on":
            logger.error("host memory is off, and prompts it held are read again: %s", state)

    def check_when_idle(self) -> None:
        """Raises `InvariantBroken` when blocks or references do not add up."""
        if not self.has_work:
            self._scheduler.check_integrity()

    def end_all(self) -> Report:
        """Every open turn ends as aborted; nothing is computed afterwards."""
        self._end_all("aborted")
        return self.report()

    def fail_all(self, error: Exception) -> Report:
        """Every open turn ends as failed; the engine must not be used afterwards."""
        lost = EngineLost(f"the engine stopped on {type(error).__name__}; the backend's log says where")
        self._end_all("failed", lost)
        return self.report()

    def _end_all(self, reason: EndReason, error: KeepwarmError | None = None) -> None:
        for request_id in self._preparing:
            self._end_early(request_id, reason, error)
        self._preparing.clear()
        self._scheduler.end_all(reason, error)

    def finish_copies(self, limit_s: float = FINISH_COPIES_LIMIT_S) -> None:
        """After `end_all`: what the ended turns left goes down to host memory, or as much as `limit_s`
        allows."""
        stop_at = self._clock() + limit_s
        while self._scheduler.has_copies and self._clock() < stop_at:
            self.step(lambda _report: None)

    def close(self) -> None:
        """Collect what is in flight and release the device."""
        while self._in_flight:
            self._in_flight.popleft()
            self._executor.collect()
        self._executor.close()
        if self._close_host is not None:
            self._close_host()
