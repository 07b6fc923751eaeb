"""A thread that does one piece of work after the other, the most urgent first. Knows not what they are."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from itertools import count
from queue import PriorityQueue
from threading import Thread
from typing import Generic, TypeVar

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")


class Urgency(IntEnum):
    """The order in which work is done; what comes after `END` is not begun any more at the end."""

    CORRECTION = 0
    END = 1
    WAITED_FOR = 2
    BACKGROUND = 3


@dataclass(slots=True)
class _Work(Generic[ResultT]):
    do: Callable[[], ResultT]
    then: Callable[[ResultT | None], None]
    result: ResultT | None = None

    def run(self) -> None:
        self.result = self.do()

    def settle(self) -> None:
        self.then(self.result)


class DiskWorker:
    """Work is handed in, and what came of it taken, by one thread; done by another. Close it."""

    def __init__(self, wake: Callable[[], object]) -> None:
        """`wake` is called from the other thread whenever `settle` has something to do."""
        self._wake = wake
        self._queue: PriorityQueue[tuple[int, int, _Work[object] | None]] = PriorityQueue()
        self._ended: deque[_Work[object]] = deque()
        self._count = count()
        self.has_failed = False
        """Some work raised; the log has it. No more is done."""
        self._thread = Thread(target=self._run, name="disk-cache", daemon=True)
        self._thread.start()

    def submit(
        self, do: Callable[[], ResultT], then: Callable[[ResultT | None], None], *, urgency: Urgency
    ) -> None:
        """`do` runs in the other thread, then `then` in `settle`, with None where `do` was not done."""
        work: _Work[ResultT] = _Work(do, then)
        self._queue.put((urgency, next(self._count), work))  # type: ignore[arg-type]

    def settle(self) -> None:
        """Tell those whose work has ended; they may hand in more."""
        while self._ended:
            self._ended.popleft().settle()

    def close(self) -> None:
        """Wait for the running piece and for corrections; all that was handed in is told."""
        self._queue.put((Urgency.END, next(self._count), None))
        self._thread.join()
        self.settle()
        while not self._queue.empty():
            _, _, work = self._queue.get()
            if work is not None:
                work.settle()

    def _run(self) -> None:
        while True:
            _, _, work = self._queue.get()
            if work is None:
                return
            if not self.has_failed:
                self._do(work)
            self._ended.append(work)
            self._wake()

    def _do(self, work: _Work[object]) -> None:
        try:
            work.run()
        except Exception:
            self.has_failed = True
            logger.exception("the disk cache has failed and is not used any more; serving goes on")
