"""Tells a router what the owners of blocks say of them. Decides nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from keepwarm.core.rank_messages import CacheEvent, Ready
from keepwarm.sched.router import Router


class RouterFeed:
    """A `RankWatcher`, and the same of host memory."""

    def __init__(self, router: Router) -> None:
        self._router = router

    # of ranks

    def rank_serves(self, rank: int, ready: Ready) -> None:
        self._router.rank_serves(rank, block_size=ready.block_size, num_blocks=ready.num_blocks)

    def cache_changed(self, rank: int, events: Sequence[CacheEvent]) -> None:
        self._router.take(rank, events)

    def rank_lost(self, rank: int) -> None:
        self._router.forget(rank)

    # of host memory

    def host_on(self, contents: Iterable[CacheEvent]) -> None:
        """It is there, and holds what these events would have brought there."""
        self._router.forget_host()
        self._router.take_host(contents)

    def host_changed(self, events: Sequence[CacheEvent]) -> None:
        """In order."""
        self._router.take_host(events)

    def host_off(self, reason: str) -> None:
        """It is gone, or switched off."""
        self._router.forget_host()
