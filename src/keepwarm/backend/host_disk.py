"""The third tier as the owner of host memory has it: there, or not, and why not.

A folder that cannot be used does not stop the service: the log says so, and L1 serves without it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from keepwarm.backend.disk_records import Record, load_records, save_records
from keepwarm.backend.disk_store import DiskStore
from keepwarm.backend.disk_tier import DiskPolicy, DiskTier
from keepwarm.backend.disk_worker import DiskWorker, Urgency
from keepwarm.backend.host_messages import DiskStatus
from keepwarm.cache.host_index import HostIndex, Owner
from keepwarm.core.errors import BadSetting
from keepwarm.core.host_tier import HostArena, HostGeometry
from keepwarm.core.ids import BlockHash
from keepwarm.core.rank_messages import CacheEvent

logger = logging.getLogger(__name__)

OPEN_LIMIT_S = 10.0
"""Turns wait no longer than that for a folder to be opened; it holds some million blocks then."""

DISK_OWNER = Owner(0)
"""Holds the leases of what is read and written; connections count from 1."""


@dataclass(slots=True, kw_only=True)
class HostDisk:
    """One folder, opened for the blocks that L1 holds now. Called by the thread that owns L1's index."""

    folder: Path
    budget_bytes: int
    policy: DiskPolicy = field(default_factory=DiskPolicy)
    clock: Callable[[], float] = time.monotonic
    wake: Callable[[], object] = lambda: None
    """Called from another thread when `tick` has something to do."""
    _worker: DiskWorker | None = None
    _store: DiskStore | None = None
    _tier: DiskTier | None = None
    _off_reason: str | None = "no rank has attached yet"
    _is_opening: bool = False
    _waited_for_until: float = 0.0

    def open(self, index: HostIndex, arena: HostArena, geometry: HostGeometry) -> None:
        """For a new L1. Another thread goes through the folder: the more it holds, the longer it takes."""
        self._is_opening, self._off_reason = True, "it is being opened"
        self._waited_for_until = self.clock() + OPEN_LIMIT_S
        self._worker = worker = DiskWorker(lambda: self.wake())
        worker.submit(
            lambda: _open(self.folder, geometry, self.budget_bytes),
            lambda opened: self._was_opened(index, arena, worker, opened),
            urgency=Urgency.WAITED_FOR,
        )

    def _was_opened(
        self, index: HostIndex, arena: HostArena, worker: DiskWorker, opened: DiskStore | BadSetting | None
    ) -> None:
        self._is_opening = False
        if not isinstance(opened, DiskStore):
            self._off_reason = str(opened or "it could not be opened")
            logger.error("serving goes on without the disk cache: %s", self._off_reason)
            return
        self._off_reason = None
        self._store = opened
        self._tier = DiskTier(
            index=index, arena=arena, store=opened, owner=DISK_OWNER, worker=worker, policy=self.policy
        )
        self._tier.note(index.contents(), self.clock())
        if index.off_reason is not None:
            self.switch_off(index.off_reason)

    def prefetch(self, after: BlockHash | None, names: Sequence[BlockHash]) -> bool:
        """See `HostTier.prefetch`. While the folder is being opened, nobody knows what it holds: wait."""
        now_s = self.clock()
        if self._is_opening:
            return now_s < self._waited_for_until
        return self._tier is not None and self._tier.prefetch(after, names, now_s)

    def note(self, events: Sequence[CacheEvent]) -> None:
        """What became of blocks in L1, all of it, in order."""
        if self._tier is not None and events:
            self._tier.note(events, self.clock())

    def tick(self) -> float | None:
        """Do what is due. Seconds until more will be; None: when `wake` is called, or after `note`."""
        if self._is_opening and self._worker is not None:
            self._worker.settle()
        return None if self._tier is None else self._tier.tick(self.clock())

    def drop(self, names: Sequence[BlockHash]) -> None:
        """See `HostTier.drop`."""
        if self._tier is not None:
            self._tier.drop(names)

    def switch_off(self, reason: str) -> None:
        """L1 has failed: nothing is read, and what was written from it goes."""
        if self._tier is not None:
            self._tier.switch_off()
            self._off_reason = reason

    def take_events(self) -> list[CacheEvent]:
        """What became of blocks on disk since the last call."""
        return [] if self._store is None else self._store.take_events()

    def contents(self) -> list[CacheEvent]:
        """What is there, as events that would have brought it there."""
        return [] if self._store is None else self._store.contents()

    def load_records(self) -> Sequence[Record]:
        """Those that the last clean end saved."""
        return load_records(self.folder)

    def close(self, *, write_limit_s: float = 0.0, records: Iterable[Record] | None = None) -> None:
        """Save `records`, write what is in L1 alone for as long as that, and let the folder go.

        Waits for what is being read or written now. It can be opened again.
        """
        if self._worker is not None and self._tier is None:
            self._worker.close()  # it may have been opened only now
        if self._tier is not None:
            if records is not None:
                save_records(self.folder, records)
            self._tier.close(write_limit_s)
        self._worker = self._store = self._tier = None
        self._off_reason = "it is closed"

    def status(self) -> DiskStatus:
        """Counts, now."""
        if self._store is None:
            return DiskStatus(budget_bytes=self.budget_bytes, off_reason=self._off_reason)
        stats = self._store.stats()
        return DiskStatus(
            budget_bytes=self.budget_bytes,
            off_reason=self._off_reason or stats.stopped,
            num_blocks=stats.num_blocks,
            num_bytes=stats.num_bytes,
            num_read_total=stats.num_read_total,
            num_written_total=stats.num_written_total,
            num_evicted_total=stats.num_evicted_total,
            num_damaged_total=stats.num_damaged_total,
        )


def _open(folder: Path, geometry: HostGeometry, budget_bytes: int) -> DiskStore | BadSetting:
    try:
        return DiskStore(folder, geometry, budget_bytes)
    except BadSetting as error:
        return error
