"""What goes down to host memory: at a turn's end beside the steps, else when it is evicted.

A turn that ends leaves its blocks here, held until they are copied; one batch at a time is in
flight, and none is begun while something is copied up. Where their room is needed sooner, those
not yet begun are let go. Blocks that are evicted before they were copied down go with the plan that
overwrites them, and what stands before them goes too, since a name's parent must be there first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from keepwarm.cache.clean_blocks import CleanBlocks
from keepwarm.cache.prefix import Holding, PrefixCache
from keepwarm.core.host_tier import HostLease
from keepwarm.core.ids import BlockHash, BlockIds
from keepwarm.sched.copies import Copies, Part
from keepwarm.sched.host_link import HostLink

_CHUNKS_A_BATCH = 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Kept:
    """Blocks of an ended turn; all are named."""

    holding: Holding
    names: Sequence[BlockHash]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reservation:
    lease: HostLease
    first: int
    """The lease's slots are for the names from here on."""
    begun_at: int
    """From here on to there, the names were in host memory already."""


class Demotions:
    """All of one rank's."""

    def __init__(self, *, link: HostLink, copies: Copies, cache: PrefixCache) -> None:
        self._link = link
        self._copies = copies
        self._cache = cache
        self.clean = CleanBlocks(cache.num_blocks)
        self._waiting: deque[_Kept] = deque()
        self._copying: _Kept | None = None
        self._held_below: list[Holding] = []  # what stands before evicted blocks

    @property
    def is_waiting(self) -> bool:
        """The next plan may begin a copy."""
        return bool(self._waiting)

    @property
    def holds_blocks(self) -> bool:
        """Blocks come free when a copy in flight ends."""
        return self._copying is not None or bool(self._held_below)

    def holdings(self) -> Iterator[Holding]:
        """Everything that is held here."""
        yield from self._held_below
        yield from (kept.holding for kept in self._waiting)
        if self._copying is not None:
            yield self._copying.holding

    def keep(self, holding: Holding, names: Sequence[BlockHash]) -> bool:
        """A turn ended: take its holding over. False: there is nothing to copy down, release it."""
        if not self._link.is_on:
            return False
        named = holding.blocks[: holding.num_named]
        if self.clean.first_dirty(named) == len(named):
            return False
        self._cache.trim(holding)
        self._waiting.append(_Kept(holding=holding, names=names))
        return True

    def give_way(self) -> bool:
        """Let go of what is held and not yet copied; False: there was nothing."""
        waiting, self._waiting = self._waiting, deque()
        for kept in waiting:
            self._cache.release(kept.holding)
        return bool(waiting)

    def begin_next(self) -> None:
        """Copy the next batch down, where there is one and its turn has come."""
        if not self._link.is_on:
            self.give_way()
        while self._waiting and self._copying is None:
            kept = self._waiting.popleft()
            if not self._begin(kept):
                self._cache.release(kept.holding)

    def _begin(self, kept: _Kept) -> bool:
        """False: nothing of it is left to copy, or host memory has no room."""
        blocks = kept.holding.blocks
        first = self.clean.first_dirty(blocks)
        while first < len(blocks):
            end = min(first + _CHUNKS_A_BATCH * self._copies.chunk_blocks, len(blocks))
            reservation = self._reserve(kept.names, first, end)
            if reservation is None:
                return False
            if reservation.first < end:
                self._copy_batch(kept, reservation, end)
                return True
            self._link.release(reservation.lease)  # another rank was here
            self.clean.add(blocks[:end])
            first = self.clean.first_dirty(blocks)
        return False

    def _copy_batch(self, kept: _Kept, reservation: _Reservation, end: int) -> None:
        self._copying = kept
        lease, first = reservation.lease, reservation.begun_at
        part = Part(blocks=kept.holding.blocks[reservation.first : end], slots=lease.slots)
        self._copies.begin("demote", [part], lambda _sound: self._end_batch(lease, first, end))

    def _end_batch(self, lease: HostLease, first: int, end: int) -> None:
        kept, self._copying = self._copying, None
        is_written = self._link.written(lease)
        self._link.release(lease)
        if kept is None:
            return
        if is_written:
            self.clean.add(kept.holding.blocks[first:end])
        if is_written and end < len(kept.holding.blocks):
            self._waiting.appendleft(kept)
        else:
            self._cache.release(kept.holding)

    def evicting(self, blocks: BlockIds, *, copy: bool) -> None:
        """These are about to lose their names, and this plan's works may overwrite them.

        They are in the order of eviction, so that a block comes after whatever follows it.
        """
        if copy and self._link.is_on:
            dirty = self.clean.dirty(blocks)
            if len(dirty):
                self._copy_down(dirty, blocks)
        self.clean.remove(blocks)

    def _copy_down(self, dirty: BlockIds, evicted: BlockIds) -> None:
        is_evicted = np.zeros(self._cache.num_blocks, dtype=np.bool_)
        is_evicted[evicted] = True
        is_done = np.zeros(self._cache.num_blocks, dtype=np.bool_)
        for leaf in dirty.tolist():
            if is_done[leaf]:
                continue
            path = self._cache.path(leaf)
            is_done[path] = True
            num_kept = len(path) - int(np.count_nonzero(is_evicted[path]))
            self._copy_path_down(path, num_kept)

    def _copy_path_down(self, path: BlockIds, num_kept: int) -> None:
        """`path[:num_kept]` keep their names; the others lose them now."""
        names = self._cache.names_of(path)
        reservation = self._reserve(names, self.clean.first_dirty(path), len(path))
        if reservation is None:
            return
        lease, first = reservation.lease, reservation.first
        if first == len(path):
            self._link.release(lease)
            return
        start = max(first, num_kept)
        num_slots_kept = start - first
        parts = [Part(blocks=path[start:], slots=lease.slots[num_slots_kept:], before_works=True)]
        held: Holding | None = None
        if num_slots_kept:
            acquired = self._cache.acquire_after(names[num_kept - 1], ())
            held = None if acquired is None else acquired[0]
            parts.append(Part(blocks=path[first:num_kept], slots=lease.slots[:num_slots_kept]))
        if held is not None:
            self._held_below.append(held)
        self._copies.begin("demote", parts, lambda _sound: self._end_eviction(lease, held))

    def _end_eviction(self, lease: HostLease, held: Holding | None) -> None:
        is_written = self._link.written(lease)
        self._link.release(lease)
        if held is None:
            return
        if is_written:
            self.clean.add(held.blocks)
        self._held_below = [other for other in self._held_below if other is not held]
        self._cache.release(held)

    def _reserve(self, names: Sequence[BlockHash], first: int, end: int) -> _Reservation | None:
        """Slots for names[first:end]; where what stands before is there no more, for all of it."""
        lease = self._link.reserve(names[first - 1] if first else None, names[first:end])
        if lease is None and first:
            first = 0
            lease = self._link.reserve(None, names[:end])
        if lease is None:
            return None
        return _Reservation(lease=lease, first=first + lease.num_present, begun_at=first)
