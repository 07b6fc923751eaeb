"""Host memory as a front observes it: hears its keeper, comes back to it, and passes on what it says."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

from keepwarm.backend.host_messages import DiskStatus, HostStatus, Told
from keepwarm.backend.host_observer import DiskView, HostView, HostWatcher
from keepwarm.core.host_tier import HostTierLost

logger = logging.getLogger(__name__)

_RETRY_S = 1.0


class HostFeed:
    """A `HostObserver`."""

    def __init__(self, observe: Callable[[], AsyncIterator[Told]], *, retry_s: float = _RETRY_S) -> None:
        """`observe` begins with all that is there, and raises `HostTierLost` at the latest when the
        keeper is gone."""
        self._observe = observe
        self._retry_s = retry_s
        self._watchers: list[HostWatcher] = []
        self._off_reason: str | None = None
        self.view: HostView | None = None

    def watch(self, watcher: HostWatcher) -> None:
        """See `HostObserver.watch`."""
        self._watchers.append(watcher)

    async def run(self) -> None:
        """See `HostObserver.run`."""
        while True:
            try:
                async for told in self._observe():
                    self._take(told)
            except HostTierLost as lost:
                self._lose(str(lost))
            await asyncio.sleep(self._retry_s)

    def _take(self, told: Told) -> None:
        self.view = _view_of(told.status)
        reason = told.status.off_reason
        if reason is not None:
            self._turn_off(reason)
        elif told.is_whole:
            self._off_reason = None
            for watcher in self._watchers:
                watcher.host_on(told.events)
        elif told.events:
            for watcher in self._watchers:
                watcher.host_changed(told.events)

    def _lose(self, reason: str) -> None:
        if self.view is not None:
            logger.warning("nothing is heard of host memory any more: %s", reason)
        self.view = None
        self._turn_off(reason)

    def _turn_off(self, reason: str) -> None:
        if self._off_reason is None:  # else why it cannot be found again, which nobody asked
            self._off_reason = reason
            for watcher in self._watchers:
                watcher.host_off(reason)


def _view_of(status: HostStatus) -> HostView:
    return HostView(
        off_reason=status.off_reason,
        blocks={
            "writing": status.num_writing,
            "leased": status.num_leased,
            "cached": status.num_cached,
            "empty": status.num_empty,
        },
        refused_blocks_total=status.num_refused_total,
        disk=None if status.disk is None else _disk_view_of(status.disk),
    )


def _disk_view_of(status: DiskStatus) -> DiskView:
    return DiskView(
        off_reason=status.off_reason,
        num_blocks=status.num_blocks,
        num_bytes=status.num_bytes,
        budget_bytes=status.budget_bytes,
        read_blocks_total=status.num_read_total,
        written_blocks_total=status.num_written_total,
        damaged_blocks_total=status.num_damaged_total,
    )
