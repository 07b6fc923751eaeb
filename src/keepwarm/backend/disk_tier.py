"""What goes from host memory to disk and back, and when. Knows neither the files nor how ranks ask.

    L1 ──▶ disk   a block that lies in L1 for `idle_s`, or earlier where L1 is nearly full; parents first,
                  never faster than `write_bytes_per_s`, and all that is left when the service stops
    disk ──▶ L1   what a waiting turn begins with, piece by piece, ahead of all writing

The caller's thread owns the index of L1 and everything here; a `DiskWorker` alone touches the store.
Slots that are being written or read are held by leases of `owner`.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from keepwarm.backend.disk_format import SlotViews
from keepwarm.backend.disk_store import DiskStore
from keepwarm.backend.disk_worker import DiskWorker, Urgency
from keepwarm.cache.host_index import HostIndex, Owner
from keepwarm.core.hashing import BlockNames
from keepwarm.core.host_tier import HostArena, HostLease, HostTierLost
from keepwarm.core.ids import BlockHash, HostSlots
from keepwarm.core.rank_messages import CacheEvent

logger = logging.getLogger(__name__)

PIECE_BYTES = 32 * 2**20
"""Read or written at a time: nobody waits longer for the disk, or holds more slots that nobody needs."""

NEARLY_FULL = 0.9
"""From this share of used slots on, blocks go to disk before they have lain for `idle_s`."""


LOAD_LIMIT_S = 60.0
"""Nobody waits longer for what is brought up: a disk that answers has read some ten GB by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskPolicy:
    """When blocks are written."""

    idle_s: float = 60.0
    write_bytes_per_s: float = 200e6
    """Some third of what a usual disk takes: reading, which turns wait for, comes first."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Load:
    """Names that are brought up, of which the first `num_done` are in L1."""

    after: BlockHash | None
    names: list[BlockHash]
    give_up_at: float
    """Then nobody waits any more; it goes on all the same."""
    num_done: int = 0
    leases: list[HostLease] = field(default_factory=list)
    """So that nothing of it is evicted before all is there."""


class DiskTier:
    """One folder below one L1. Close it."""

    def __init__(
        self,
        *,
        index: HostIndex,
        arena: HostArena,
        store: DiskStore,
        owner: Owner,
        worker: DiskWorker,
        policy: DiskPolicy | None = None,
    ) -> None:
        """The store and the worker, which alone touches it from now on, are closed with this."""
        self._index = index
        self._arena = arena
        self._store = store
        self._owner = owner
        self._policy = policy or DiskPolicy()
        self._worker = worker
        self._piece_blocks = max(1, PIECE_BYTES // arena.layout.slot_bytes)
        self._loading: dict[BlockHash, _Load] = {}
        self._parents: dict[BlockHash, BlockHash | None] = {}  # of what is in L1, parents first
        self._stored_at: dict[BlockHash, float] = {}  # of those that were not written yet, oldest first
        self._is_writing = False
        self._write_again_at = 0.0
        self._is_off = False

    # -- up ------------------------------------------------------------------------------------

    def prefetch(self, after: BlockHash | None, names: Sequence[BlockHash], now_s: float) -> bool:
        """See `HostTier.prefetch`. A disk that hangs is not waited for."""
        self._worker.settle()
        num_there = bisect_left(range(len(names)), True, key=lambda at: names[at] not in self._parents)
        if num_there == len(names) or self._is_off or self._worker.has_failed:
            return False
        if num_there:
            after, names = names[num_there - 1], names[num_there:]
        if names[0] in self._loading:
            return now_s < self._loading[names[0]].give_up_at
        num_found = self._store.find(after, names)
        if not num_found:
            return False
        load = _Load(after=after, names=list(names[:num_found]), give_up_at=now_s + LOAD_LIMIT_S)
        self._loading.update(dict.fromkeys(load.names, load))
        self._go_on(load)
        return names[0] in self._loading

    def _go_on(self, load: _Load) -> None:
        """Ask for the next piece; end where there is none, or no room for it."""
        try:
            while load.num_done < len(load.names):
                piece = load.names[load.num_done : load.num_done + self._piece_blocks]
                before = load.names[load.num_done - 1] if load.num_done else load.after
                lease = self._index.reserve(self._owner, before, piece)
                if lease is None:
                    break
                if lease.num_present < len(piece):
                    self._read(load, lease, piece[lease.num_present :])
                    return
                load.leases.append(lease)  # a rank was faster
                load.num_done += len(piece)
        except HostTierLost:
            pass
        self._end(load)

    def _read(self, load: _Load, lease: HostLease, names: list[BlockHash]) -> None:
        slots = self._views(lease.slots)
        self._worker.submit(
            lambda: self._store.read_into(names, slots),
            lambda num_sound: self._was_read(load, lease, len(names), num_sound or 0),
            urgency=Urgency.WAITED_FOR,
        )

    def _was_read(self, load: _Load, lease: HostLease, num_read: int, num_sound: int) -> None:
        if num_sound < num_read:  # only whole leases become readable: ask again for what is sound
            self._index.release(self._owner, lease.lease_id)
            del load.names[load.num_done + lease.num_present + num_sound :]
        else:
            load.leases.append(lease)
            load.num_done += lease.num_present + num_read
            try:
                self._index.written(self._owner, lease.lease_id, reason="loaded")
            except HostTierLost:
                del load.names[load.num_done :]
        self._go_on(load)

    def _end(self, load: _Load) -> None:
        for lease in load.leases:
            self._index.release(self._owner, lease.lease_id)
        self._loading = {name: other for name, other in self._loading.items() if other is not load}

    # -- down ----------------------------------------------------------------------------------

    def note(self, events: Iterable[CacheEvent], now_s: float) -> None:
        """What became of blocks in L1 since the last call, all of it, in order."""
        for event in events:
            names = list(BlockNames(event.names))
            if event.kind == "evicted":
                for name in names:
                    self._parents.pop(name, None)
                    self._stored_at.pop(name, None)
                continue
            parent = BlockHash(event.parent) if event.parent else None
            for name in names:
                self._parents[name] = parent
                if event.reason != "loaded":
                    self._stored_at[name] = now_s
                parent = name

    def tick(self, now_s: float) -> float | None:
        """Do what is due. Seconds until more will be; None: when the worker wakes, or after `note`."""
        self._worker.settle()
        if self._is_off or self._worker.has_failed or self._is_writing:
            return None
        while self._stored_at:
            oldest, stored_at = next(iter(self._stored_at.items()))
            due_at = stored_at + (0.0 if self._is_nearly_full() else self._policy.idle_s)
            due_at = max(due_at, self._write_again_at)
            if now_s < due_at:
                return due_at - now_s
            if self._write_with(oldest, now_s):
                return None
        return None

    def _is_nearly_full(self) -> bool:
        return self._index.occupancy().empty < (1 - NEARLY_FULL) * self._index.num_slots

    def _write_with(self, name: BlockHash, now_s: float) -> bool:
        """Whether a piece of the conversation of `name` is being written now."""
        names = self._missing_up_to(name)[: self._piece_blocks]
        held = self._hold(names) if names else None
        if held is None:
            del self._stored_at[name]  # it is on disk, or not in L1 any more
            return False
        lease, parent = held
        del names[lease.num_present :]
        for taken in names:
            self._stored_at.pop(taken, None)
        slots = self._views(lease.slots)
        self._is_writing = True
        num_bytes = len(names) * self._arena.layout.slot_bytes
        self._write_again_at = now_s + num_bytes / self._policy.write_bytes_per_s
        self._worker.submit(
            lambda: self._store.append(parent, names, slots),
            lambda num_kept: self._was_written(lease, name, num_kept == len(names)),
            urgency=Urgency.BACKGROUND,
        )
        return True

    def _missing_up_to(self, name: BlockHash) -> list[BlockHash]:
        """What is not on disk of the conversation that goes through `name`, and of what follows it next."""
        names: list[BlockHash] = []
        at: BlockHash | None = name
        while at is not None and at in self._parents and not self._is_on_disk(at):
            names.append(at)
            at = self._parents[at]
        if not names:
            return names
        names.reverse()
        for follower in islice(self._stored_at, 4 * self._piece_blocks):
            if len(names) >= self._piece_blocks:
                break
            if self._parents[follower] == names[-1] and not self._is_on_disk(follower):
                names.append(follower)
        return names

    def _is_on_disk(self, name: BlockHash) -> bool:
        return self._store.find(self._parents[name], [name]) == 1

    def _hold(self, names: list[BlockHash]) -> tuple[HostLease, BlockHash | None] | None:
        """Slots of the leading `names`, and the name before them."""
        parent = self._parents[names[0]]
        try:
            lease = self._index.find(self._owner, parent, names)
        except HostTierLost:
            return None
        return None if lease is None else (lease, parent)

    def _was_written(self, lease: HostLease, name: BlockHash, is_kept: bool) -> None:
        self._index.release(self._owner, lease.lease_id)
        self._is_writing = False
        if not is_kept:  # no room that could be made: not tried again for what follows
            self._stored_at.pop(name, None)
        if self._store.stats().stopped is not None:
            self._stored_at.clear()

    # -- what is wrong, and the end ------------------------------------------------------------

    def drop(self, names: Sequence[BlockHash]) -> None:
        """See `HostTier.drop`."""
        wrong = list(names)
        self._worker.submit(lambda: self._store.drop(wrong), _nothing, urgency=Urgency.CORRECTION)

    def switch_off(self) -> None:
        """Host memory has failed: what was written from it is not to be believed either."""
        self._is_off = True
        self._stored_at.clear()
        self._worker.submit(self._store.drop_written, _nothing, urgency=Urgency.CORRECTION)

    def close(self, write_limit_s: float = 0.0) -> None:
        """Write what is in L1 alone, the newest conversations first, for as long as that; then close."""
        self._worker.close()
        if not self._worker.has_failed:
            self._write_all(time.monotonic() + write_limit_s)
        self._store.close()

    def _write_all(self, end_at: float) -> None:
        self._store.keep_what_is_used()
        written: list[BlockHash] = []
        for name in reversed(list(self._parents)):
            if time.monotonic() >= end_at:
                break
            names = self._missing_up_to(name)
            while names and time.monotonic() < end_at:
                num_kept = self._write_now(names[: self._piece_blocks])
                if not num_kept:  # no room, or the disk failed: nor for others
                    end_at = 0.0
                    break
                written.append(names[num_kept - 1])
                del names[:num_kept]
        for name in reversed(written):  # the next start shall know which are the newest
            self._store.use(name)
        if written:
            logger.info("disk cache: %s", self._store.stats())

    def _write_now(self, names: list[BlockHash]) -> int:
        held = self._hold(names)
        if held is None:
            return 0
        lease, parent = held
        num_kept = self._store.append(parent, names[: lease.num_present], self._views(lease.slots))
        self._index.release(self._owner, lease.lease_id)
        return num_kept

    def _views(self, slots: HostSlots) -> list[SlotViews]:
        return [SlotViews.of(self._arena, slot) for slot in slots.tolist()]


def _nothing(_: None) -> None:
    pass
