"""What a front knows of the replica's host memory, whoever keeps it. Numbers and names, no bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from keepwarm.core.rank_messages import CacheEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskView:
    """The third tier, now. Blocks are records."""

    off_reason: str | None
    """Why nothing is written any more; None: it is on."""
    num_blocks: int
    num_bytes: int
    budget_bytes: int
    read_blocks_total: int
    written_blocks_total: int
    damaged_blocks_total: int
    """Found to be other than what was written, and not used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostView:
    """Host memory, now. Blocks are slots of the arena."""

    off_reason: str | None
    """Why nothing is taken or given; None: it is on."""
    blocks: Mapping[str, int]
    """By state; together they are all. "empty" ones hold nothing."""
    refused_blocks_total: int
    """Asked room for, and there was none."""
    disk: DiskView | None = None
    """None: there is no third tier."""


class HostWatcher(Protocol):
    """Hears what becomes of blocks in host memory and on disk, on the event loop; never blocks."""

    def host_on(self, contents: Iterable[CacheEvent]) -> None:
        """It is there, and holds what these events would have brought there."""

    def host_changed(self, events: Sequence[CacheEvent]) -> None:
        """In order; of the tiers "l1" and "disk"."""

    def host_off(self, reason: str) -> None:
        """It is gone, or switched off; nothing of it is told until `host_on`."""


class HostObserver(Protocol):
    """The front's side of host memory. All calls come from one event loop."""

    @property
    def view(self) -> HostView | None:
        """The latest that is known; None where there is nothing to know yet."""

    def watch(self, watcher: HostWatcher) -> None:
        """`watcher` hears everything, what is there included. Before `run`."""

    async def run(self) -> None:
        """Hears whoever keeps it, and looks for it again where it is lost. Until it is cancelled."""
