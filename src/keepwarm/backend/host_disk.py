"""The third tier as the owner of host memory has it: there, or not, and why not.

A folder that cannot be used does not stop the service: the log says so, and L1 serves without it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from keepwarm.backend.disk_records import Record, load_records, save_records
from keepwarm.backend.disk_store import DiskStore
from keepwarm.backend.disk_tier import DiskPolicy, DiskTier
from keepwarm.cache.host_index import HostIndex, Owner
from keepwarm.core.errors import BadSetting
from keepwarm.core.host_tier import HostArena, HostGeometry
from keepwarm.core.ids import BlockHash
from keepwarm.core.rank_messages import CacheEvent

logger = logging.getLogger(__name__)

DISK_OWNER = Owner(0)
"""Holds the leases of what is read and written; connections count from 1."""


class DiskStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Gauges now, and counters (num_*_total) since start."""

    budget_bytes: int
    off_reason: str | None
    """Why nothing is written, or the tier is not there at all."""
    num_blocks: int = 0
    num_bytes: int = 0
    num_read_total: int = 0
    num_written_total: int = 0
    num_evicted_total: int = 0
    num_damaged_total: int = 0


@dataclass(slots=True, kw_only=True)
class HostDisk:
    """One folder, opened for the blocks that L1 holds now."""

    folder: Path
    budget_bytes: int
    policy: DiskPolicy = field(default_factory=DiskPolicy)
    wake: Callable[[], None] = lambda: None
    """Called from another thread when `tick` has something to do."""
    _tier: DiskTier | None = None
    _store: DiskStore | None = None
    _off_reason: str | None = "no rank has attached yet"

    def open(self, index: HostIndex, arena: HostArena, geometry: HostGeometry) -> None:
        """For a new L1; one that was opened before is closed."""
        try:
            self._store = DiskStore(self.folder, geometry, self.budget_bytes)
        except BadSetting as error:
            self._off_reason = str(error)
            logger.error("serving goes on without the disk cache: %s", error)
            return
        self._off_reason = None
        self._tier = DiskTier(
            index=index,
            arena=arena,
            store=self._store,
            owner=DISK_OWNER,
            wake=self.wake,
            policy=self.policy,
        )

    def prefetch(self, after: BlockHash | None, names: Sequence[BlockHash]) -> bool:
        """See `HostTier.prefetch`."""
        return self._tier is not None and self._tier.prefetch(after, names)

    def note(self, events: Sequence[CacheEvent], now_s: float) -> None:
        """What became of blocks in L1, all of it, in order."""
        if self._tier is not None and events:
            self._tier.note(events, now_s)

    def tick(self, now_s: float) -> float | None:
        """Do what is due. Seconds until more will be; None: when `wake` or `note` is called."""
        return None if self._tier is None else self._tier.tick(now_s)

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
        return [] if self._tier is None else self._tier.take_events()

    def contents(self) -> list[CacheEvent]:
        """What is there, as events that would have brought it there."""
        return [] if self._store is None else self._store.contents()

    def load_records(self) -> Sequence[Record]:
        """Those that the last clean end saved."""
        return load_records(self.folder)

    def close(self, *, write_limit_s: float = 0.0, records: Sequence[Record] | None = None) -> None:
        """Save `records`, write what is in L1 alone for as long as that, and let the folder go."""
        if self._tier is None:
            return
        if records is not None:
            save_records(self.folder, records)
        self._tier.close(write_limit_s)
        self._tier = self._store = None
        self._off_reason = "closed"

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
