"""The threads on which blocks are copied beside the works, and the order in which they are.

Owns what is being copied and what waits. Knows no tensor: a `BlockMover` moves the bytes.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from queue import Empty, PriorityQueue, SimpleQueue
from typing import Final

from keepwarm.core.errors import EngineLost
from keepwarm.core.step import BlockCopies, CopyResult, StepId, StepPlan
from keepwarm.engine.block_copies import BlockMover, Progress

COPY_TIMEOUT_S: Final = 600.0
"""A copy that takes longer will never end."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class _Job:
    """A copy of a plan's; held by one thread at a time."""

    progress: Progress
    step_id: StepId
    copy_s: float = 0.0
    """Spent on its pieces so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    step_id: StepId
    result: CopyResult


Order = tuple[int, int]
"""Turns wait for what is copied up, so that goes first; otherwise in the order of the plans."""


class CopyThreads:
    """All methods are called by one thread, the engine's."""

    def __init__(self, mover: BlockMover, *, num_threads: int = 1) -> None:
        self._mover = mover
        self._waiting: PriorityQueue[tuple[Order, _Job | None]] = PriorityQueue()
        self._from_threads: SimpleQueue[_Ended | Exception] = SimpleQueue()
        self._running: list[StepId] = []
        """The steps of copies that have not been heard of since they began, one entry a copy."""
        self._ended: list[_Ended] = []
        self._threads = [
            threading.Thread(target=self._run, name=f"block-copies-{number}", daemon=True)
            for number in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def begin(self, plan: StepPlan) -> None:
        """Do those `before_works`, all of them first; the others run from now on."""
        for copies in plan.copies:
            if copies.before_works:
                job = self._job(copies, plan.step_id)
                while not job.progress.has_ended:
                    self._move_piece(job)
                self._ended.append(self._end(job))
        for copies in plan.copies:
            if not copies.before_works:
                self._running.append(plan.step_id)
                self._waiting.put((_order(copies), self._job(copies, plan.step_id)))

    def take(self, step_id: StepId, *, awaited: bool) -> tuple[CopyResult, ...]:
        """Results of ended copies of plans up to this one; `awaited`: wait for one, if any is left.

        Raises whatever a copy raised, and `EngineLost` where a copy does not end.
        """
        while self._hear(wait=False):
            pass
        while awaited and not self._has_ended(step_id) and any(step <= step_id for step in self._running):
            self._hear(wait=True)
        taken = tuple(ended.result for ended in self._ended if ended.step_id <= step_id)
        self._ended = [ended for ended in self._ended if ended.step_id > step_id]
        return taken

    def close(self) -> None:
        """Wait for the copies that run. Afterwards nothing here refers to host memory."""
        for number in range(len(self._threads)):
            self._waiting.put(((2, number), None))
        for thread in self._threads:
            thread.join(COPY_TIMEOUT_S)
            if thread.is_alive():
                raise EngineLost(f"a copy of blocks has not ended within {COPY_TIMEOUT_S:.0f} s")
        del self._mover

    def _has_ended(self, step_id: StepId) -> bool:
        return any(ended.step_id <= step_id for ended in self._ended)

    def _hear(self, *, wait: bool) -> bool:
        """Whether a thread had something to say."""
        try:
            heard = self._from_threads.get(block=wait, timeout=COPY_TIMEOUT_S)
        except Empty:
            if wait:
                raise EngineLost(f"no copy of blocks has ended within {COPY_TIMEOUT_S:.0f} s") from None
            return False
        if isinstance(heard, Exception):
            raise heard
        self._running.remove(heard.step_id)
        self._ended.append(heard)
        return True

    def _run(self) -> None:
        """A thread: a piece of the most urgent copy, then again."""
        try:
            while True:
                order, job = self._waiting.get()
                if job is None:
                    return
                self._move_piece(job)
                if job.progress.has_ended:
                    self._from_threads.put(self._end(job))
                else:
                    self._waiting.put((order, job))
        except Exception as error:  # the engine's thread raises it
            _log.exception("a copy of blocks failed")
            self._from_threads.put(error)

    def _job(self, copies: BlockCopies, step_id: StepId) -> _Job:
        return _Job(progress=self._mover.begin(copies), step_id=step_id)

    def _move_piece(self, job: _Job) -> None:
        started_at = time.perf_counter()
        self._mover.move_piece(job.progress)
        job.copy_s += time.perf_counter() - started_at

    def _end(self, job: _Job) -> _Ended:
        return _Ended(step_id=job.step_id, result=self._mover.result(job.progress, job.copy_s))


def _order(copies: BlockCopies) -> Order:
    return (0 if copies.direction == "promote" else 1, copies.copy_id)
