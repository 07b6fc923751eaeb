"""L1's index: which slot of host memory holds which block, who writes it and who reads it.

Bookkeeping only; it never sees a byte, and does not know who its owners are. A slot is in exactly
one state:

               reserve               written                 release
        empty ─────────▶ writing(owner) ─────▶ ready, leased ─────────▶ ready, cached
          ▲                 │                      ▲                        │ │
          ├─ release ───────┘                      └──── find, reserve ─────┘ │
          └────────────────── eviction, when room is needed; drop ────────────┘

A lease holds the whole prefix that its slots stand in, so a block's parent is there as long as the
block is, and leaves are evicted before roots (`PrefixCache`). Whoever dies leaves nothing behind:
`release_owner`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NewType

import numpy as np
import numpy.typing as npt

from keepwarm.cache.prefix import Holding, PrefixCache
from keepwarm.core.errors import InvariantBroken
from keepwarm.core.hashing import join_hashes
from keepwarm.core.host_tier import HostLease, HostTier, HostTierLost, LeaseId
from keepwarm.core.ids import BlockHash, BlockId, BlockIds, HostSlots, block_ids
from keepwarm.core.layout import CacheLayout
from keepwarm.core.rank_messages import CacheEvent

Owner = NewType("Owner", int)
"""Whoever holds leases and may die: a rank's connection, or a slower tier."""

_SLOTS = CacheLayout(block_size=1, groups=())
"""A slot is one block, whatever is in it."""


@dataclass(slots=True, kw_only=True)
class HostCounters:
    """Blocks since start."""

    found: int = 0
    not_found: int = 0
    stored: int = 0
    evicted_for_room: int = 0
    dropped: int = 0
    """Their contents were wrong, or the tier was switched off."""
    refused: int = 0
    """Asked room for, and there was none."""
    reclaimed: int = 0
    """Half-written by an owner that went away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOccupancy:
    """Slots by state, now. Their sum is `total`."""

    total: int
    writing: int
    leased: int
    cached: int
    empty: int


@dataclass(slots=True, kw_only=True, eq=False)
class _Lease:
    owner: Owner
    holding: Holding
    after: BlockHash | None
    """The name before those of `unwritten`."""
    unwritten: Sequence[BlockHash]
    """What the last slots of the holding will be called. Empty: it only reads, or has written."""
    nameless: list[BlockId] = field(default_factory=list)
    """Held beside the holding: others have these blocks, or they were dropped meanwhile."""
    brought_up: BlockIds = field(default_factory=lambda: block_ids([]))
    """Slots that this lease counted as brought up from a slower tier."""


class HostIndex:
    """The one owner of all slots' states. Not thread-safe."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.counters = HostCounters()
        self.off_reason: str | None = None
        """Why nothing is taken any more; None while it serves."""
        self._cache = PrefixCache(layout=_SLOTS, num_blocks=num_slots)
        self._leases: dict[LeaseId, _Lease] = {}
        self._num_leases = 0
        self._num_writing = 0
        self._from_disk = np.zeros(num_slots, dtype=np.bool_)  # and nobody has read it since
        self._events: list[CacheEvent] = []

    def for_owner(self, owner: Owner) -> HostTier:
        """The index as one owner sees it, for whoever lives in the same process."""
        return _OwnedTier(self, owner)

    def find(self, owner: Owner, after: BlockHash | None, names: Sequence[BlockHash]) -> HostLease | None:
        """See `HostTier.find`."""
        self._refuse_if_off()
        acquired = self._cache.acquire_after(after, names)
        num_found = 0 if acquired is None else acquired[1]
        self.counters.found += num_found
        self.counters.not_found += len(names) - num_found
        if acquired is None:
            return None
        holding = acquired[0]
        if not num_found:
            self._cache.release(holding)
            return None
        slots = holding.blocks[len(holding.blocks) - num_found :]
        brought_up = slots[self._from_disk[slots]]
        lease = _Lease(owner=owner, holding=holding, after=after, unwritten=(), brought_up=brought_up)
        return self._grant(lease, num_present=num_found, slots=slots)

    def reserve(self, owner: Owner, after: BlockHash | None, names: Sequence[BlockHash]) -> HostLease | None:
        """See `HostTier.reserve`."""
        self._refuse_if_off()
        acquired = self._cache.acquire_after(after, names)
        if acquired is None:
            return None
        holding, num_present = acquired
        unwritten = names[num_present:]
        slots = self._take(holding, len(unwritten))
        if slots is None:
            self.counters.refused += len(unwritten)
            self._cache.release(holding)
            return None
        self._num_writing += len(slots)
        self._from_disk[slots] = False
        before = names[num_present - 1] if num_present else after
        lease = _Lease(owner=owner, holding=holding, after=before, unwritten=unwritten)
        return self._grant(lease, num_present=num_present, slots=slots)

    def written(
        self, owner: Owner, lease_id: LeaseId, *, reason: Literal["demoted", "loaded"] = "demoted"
    ) -> None:
        """See `HostTier.written`. "loaded": from a slower tier, not by a rank."""
        self._refuse_if_off()
        lease = self._lease(owner, lease_id)
        names, lease.unwritten = lease.unwritten, ()
        if not names:
            return
        self._num_writing -= len(names)
        replaced = self._cache.publish(lease.holding, names)
        lease.nameless += [replacement.old for replacement in replaced]
        new = names[len(replaced) :]
        if not new:
            return
        self.counters.stored += len(new)
        self._from_disk[lease.holding.blocks[len(lease.holding.blocks) - len(new) :]] = reason == "loaded"
        parent = names[len(replaced) - 1] if replaced else lease.after
        self._events.append(_stored(parent, new, reason))

    def release(self, owner: Owner, lease_id: LeaseId) -> None:
        """See `HostTier.release`."""
        lease = self._lease(owner, lease_id)
        del self._leases[lease_id]
        self._num_writing -= len(lease.unwritten)
        self._from_disk[lease.brought_up] = False
        self._cache.release(lease.holding)
        for slot in lease.nameless:
            self._cache.drop(slot)

    def release_owner(self, owner: Owner) -> int:
        """An owner is gone, and nothing it began goes on: all its leases end; how many."""
        theirs = [lease_id for lease_id, lease in self._leases.items() if lease.owner == owner]
        for lease_id in theirs:
            self.counters.reclaimed += len(self._leases[lease_id].unwritten)
            self.release(owner, lease_id)
        return len(theirs)

    def drop(self, names: Sequence[BlockHash]) -> None:
        """See `HostTier.drop`. Nobody finds what follows them either."""
        blocks, forgotten = self._cache.forget(names)
        if not forgotten:
            return
        self.counters.dropped += len(forgotten)
        self._events.append(_evicted(forgotten, "dropped"))
        is_forgotten = np.zeros(self.num_slots, dtype=np.bool_)
        is_forgotten[blocks] = True
        for lease in self._leases.values():
            self._take_out(lease, is_forgotten)

    def switch_off(self, reason: str) -> None:
        """See `HostTier.switch_off`. Leases may still be released."""
        if self.off_reason is None:
            self.drop([name for _parent, names in self._cache.runs() for name in names])
            self.off_reason = reason

    def occupancy(self) -> HostOccupancy:
        """Slots by state, now."""
        by_state = self._cache.occupancy()
        return HostOccupancy(
            total=by_state.total,
            writing=self._num_writing,
            leased=by_state.held - self._num_writing,
            cached=by_state.cached,
            empty=by_state.empty,
        )

    def take_events(self) -> list[CacheEvent]:
        """What became of blocks since the last call, in order."""
        events, self._events = self._events, []
        return events

    def contents(self) -> Iterator[CacheEvent]:
        """What is there, as events that would have brought it there; for whoever was not told before."""
        for parent, names in self._cache.runs():
            yield _stored(parent, names, "demoted")

    def check(self) -> None:
        """Raise `InvariantBroken` unless slots, names and leases agree. O(slots)."""
        leases = self._leases.values()
        held = [lease.holding.blocks for lease in leases] + [block_ids(lease.nameless) for lease in leases]
        self._cache.check(np.concatenate([block_ids([]), *held]))
        num_writing = sum(len(lease.unwritten) for lease in leases)
        if num_writing != self._num_writing:
            raise InvariantBroken(f"{self._num_writing} slots are said to be written, {num_writing} are")

    def _grant(self, lease: _Lease, *, num_present: int, slots: HostSlots) -> HostLease:
        self._num_leases += 1
        lease_id = LeaseId(self._num_leases)
        self._leases[lease_id] = lease
        return HostLease(
            lease_id=lease_id,
            num_present=num_present,
            slots=slots.copy(),
            num_from_disk=len(lease.brought_up),
        )

    def _take(self, holding: Holding, count: int) -> HostSlots | None:
        """Fresh slots at the end of a holding. None: no room now."""
        occupancy = self._cache.occupancy()
        if count > occupancy.empty + occupancy.cached:
            return None
        evicted = self._cache.evict(max(0, count - occupancy.empty))
        if evicted:
            self.counters.evicted_for_room += len(evicted)
            self._events.append(_evicted(evicted, "room"))
        return self._cache.extend(holding, count)

    def _take_out(self, lease: _Lease, is_forgotten: npt.NDArray[np.bool_]) -> None:
        """Forgotten blocks leave a lease's holding. What it was to write has no parent any more."""
        holding = lease.holding
        named, own = holding.blocks[: holding.num_named], holding.blocks[holding.num_named :]
        forgotten = is_forgotten[named]
        if not np.any(forgotten):
            return
        lease.nameless += [BlockId(slot) for slot in named[forgotten].tolist()]
        holding.blocks = np.concatenate([named[~forgotten], own])
        holding.num_named = len(named) - int(np.count_nonzero(forgotten))
        self._num_writing -= len(lease.unwritten)
        lease.unwritten = ()

    def _lease(self, owner: Owner, lease_id: LeaseId) -> _Lease:
        lease = self._leases.get(lease_id)
        if lease is None or lease.owner != owner:
            raise InvariantBroken(f"owner {owner} has no lease {lease_id}")
        return lease

    def _refuse_if_off(self) -> None:
        if self.off_reason is not None:
            raise HostTierLost(f"host memory is switched off: {self.off_reason}")


@dataclass(frozen=True, slots=True)
class _OwnedTier:
    """`HostTier` over an index in the same process."""

    index: HostIndex
    owner: Owner

    def find(self, after: BlockHash | None, names: Sequence[BlockHash]) -> HostLease | None:
        return self.index.find(self.owner, after, names)

    def prefetch(self, after: BlockHash | None, names: Sequence[BlockHash]) -> bool:
        return False  # there is no slower tier

    def reserve(self, after: BlockHash | None, names: Sequence[BlockHash]) -> HostLease | None:
        return self.index.reserve(self.owner, after, names)

    def written(self, lease: HostLease) -> None:
        self.index.written(self.owner, lease.lease_id)

    def release(self, lease: HostLease) -> None:
        self.index.release(self.owner, lease.lease_id)

    def drop(self, names: Sequence[BlockHash]) -> None:
        self.index.drop(names)

    def switch_off(self, reason: str) -> None:
        self.index.switch_off(reason)


def _stored(parent: BlockHash | None, names: Sequence[BlockHash], reason: str) -> CacheEvent:
    return CacheEvent(kind="stored", tier="l1", names=join_hashes(names), parent=parent or b"", reason=reason)


def _evicted(names: Sequence[BlockHash], reason: str) -> CacheEvent:
    return CacheEvent(kind="evicted", tier="l1", names=join_hashes(names), reason=reason)
