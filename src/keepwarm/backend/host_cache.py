"""L1 as its owner has it: the segment, its index, records, and a disk below; knows no socket.

The first rank that attaches says what a block is. A rank with other blocks gets the arena made anew
where nobody else is attached; what was in it is told as cleared.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field

import msgspec
import numpy as np

from keepwarm.backend import host_messages as messages
from keepwarm.backend.host_arena import MappedArena, make_segment
from keepwarm.backend.host_disk import HostDisk
from keepwarm.backend.host_records import HostRecords
from keepwarm.cache.host_index import HostCounters, HostIndex, HostOccupancy, Owner
from keepwarm.core.errors import BadSetting, InvariantBroken
from keepwarm.core.hashing import BlockNames
from keepwarm.core.host_tier import CHECKSUM_BYTES, PAGE_BYTES, ArenaLayout, HostGeometry, HostLease, LeaseId
from keepwarm.core.ids import BlockHash
from keepwarm.core.rank_messages import CacheEvent

logger = logging.getLogger(__name__)

MAX_SLOTS = 1 << 20
"""The index takes some 300 bytes a slot, and who comes to listen is told all names at once: so blocks
of very few bytes do not fill a large budget."""

Answer = messages.Lease | messages.Nothing | messages.Yes | messages.Done | messages.Off
Question = (
    messages.Find
    | messages.Prefetch
    | messages.Reserve
    | messages.Written
    | messages.Release
    | messages.Drop
    | messages.SwitchOff
)


@dataclass(slots=True, kw_only=True)
class _Segment:
    geometry: HostGeometry
    descriptor: int
    mapped: MappedArena
    index: HostIndex


@dataclass(slots=True, kw_only=True)
class HostCache:
    """One replica's. Not thread-safe."""

    budget_bytes: int
    setting: str = "--host-cache-gb"
    """What the budget comes from, for errors."""
    records: HostRecords = field(default_factory=lambda: HostRecords(64_000_000))
    disk: HostDisk | None = None
    """The third tier; None: there is none."""
    _segment: _Segment | None = None
    _attached: dict[Owner, int] = field(default_factory=dict)
    """Each owner's rank."""
    _off_reason: str | None = None
    _events: list[CacheEvent] = field(default_factory=list)

    def attach(self, owner: Owner, message: messages.Attach) -> messages.Attached | messages.Off:
        """`descriptor` goes with the answer. Raises `BadSetting`."""
        if owner in self._attached:
            raise InvariantBroken(f"rank {message.rank} attaches twice over one connection")
        if self._off_reason is not None:
            return messages.Off(reason=self._off_reason)
        segment = self._segment_for(message)
        self._attached[owner] = message.rank
        layout = segment.mapped.arena.layout
        return messages.Attached(num_slots=layout.num_slots, slot_bytes=layout.slot_bytes)

    def is_attached(self, owner: Owner) -> bool:
        """Between `attach` and `leave`."""
        return owner in self._attached

    @property
    def descriptor(self) -> int:
        """Of the segment. Raises `InvariantBroken` where nobody has attached."""
        return self._made().descriptor

    def answer(self, owner: Owner, question: Question) -> Answer:
        """Do what an attached owner asks. Raises `InvariantBroken` on what it may not ask."""
        if owner not in self._attached:
            raise InvariantBroken(f"{type(question).__name__} from a connection that has not attached")
        index = self._made().index
        match question:
            case messages.Release():
                index.release(owner, LeaseId(question.lease_id))
                if self._off_reason is not None:  # what was read of the slots may be anything
                    return messages.Off(reason=self._off_reason)
                return messages.Done()
            case messages.SwitchOff():
                self._switch_off(index, question.reason)
                return messages.Done()
            case _ if self._off_reason is not None:
                return messages.Off(reason=self._off_reason)
            case messages.Find():
                return _lease(index.find(owner, _after(question), BlockNames(question.names)))
            case messages.Prefetch():
                after, names = _after(question), BlockNames(question.names)
                is_coming = self.disk is not None and self.disk.prefetch(after, names)
                return messages.Yes() if is_coming else messages.Nothing()
            case messages.Reserve():
                return _lease(index.reserve(owner, _after(question), BlockNames(question.names)))
            case messages.Written():
                index.written(owner, LeaseId(question.lease_id))
                return messages.Done()
            case messages.Drop():
                index.drop(BlockNames(question.names))
                if self.disk is not None:
                    self.disk.drop(BlockNames(question.names))
                return messages.Done()

    def leave(self, owner: Owner) -> None:
        """An owner is gone, and nothing it began goes on."""
        rank = self._attached.pop(owner, None)
        if rank is None:
            return
        num_reclaimed = self._made().index.release_owner(owner)
        if num_reclaimed:
            logger.info("rank %d left %d leases: released", rank, num_reclaimed)

    def take_events(self) -> tuple[CacheEvent, ...]:
        """What became of blocks since the last call, in order."""
        if self._segment is not None:
            events_of_l1 = self._segment.index.take_events()
            self._events += events_of_l1
            if self.disk is not None:
                self.disk.note(events_of_l1)
        if self.disk is not None:
            self._events += self.disk.take_events()
        events, self._events = self._events, []
        return tuple(events)

    def contents(self) -> tuple[CacheEvent, ...]:
        """All that is there, as events that would have brought it there."""
        in_l1 = () if self._segment is None else self._segment.index.contents()
        return (*in_l1, *(self.disk.contents() if self.disk is not None else ()))

    def status(self) -> messages.HostStatus:
        """Counts, now."""
        segment = self._segment
        occupancy = segment.index.occupancy() if segment else _NO_SLOTS
        counters = segment.index.counters if segment else HostCounters()
        return messages.HostStatus(
            budget_bytes=self.budget_bytes,
            slot_bytes=segment.geometry.slot_bytes if segment else 0,
            ranks=tuple(self._attached.values()),
            off_reason=self._off_reason,
            num_slots=occupancy.total,
            num_writing=occupancy.writing,
            num_leased=occupancy.leased,
            num_cached=occupancy.cached,
            num_empty=occupancy.empty,
            num_found_total=counters.found,
            num_not_found_total=counters.not_found,
            num_stored_total=counters.stored,
            num_evicted_total=counters.evicted_for_room,
            num_dropped_total=counters.dropped,
            num_refused_total=counters.refused,
            num_reclaimed_total=counters.reclaimed,
            record_bytes=self.records.num_bytes,
            disk=None if self.disk is None else self.disk.status(),
        )

    def check(self) -> None:
        """Raise `InvariantBroken` unless the index is sound."""
        if self._segment is not None:
            self._segment.index.check()

    def tick(self) -> float | None:
        """Do what is due between the tiers. Seconds until more is; None: after `take_events` only, or
        when `disk.wake` is called."""
        return None if self.disk is None else self.disk.tick()

    def close(self, *, disk_write_limit_s: float = 0.0) -> None:
        """Write to disk what is here alone, for as long as that, and give the segment back; who has
        mapped it keeps it until then."""
        if self.disk is not None:
            self.take_events()
            records = [record for batch in self.records.batches() for record in batch]
            self.disk.close(write_limit_s=disk_write_limit_s, records=records)
        if self._segment is not None:
            self._segment.mapped.close()
            os.close(self._segment.descriptor)
            self._segment = None

    def _segment_for(self, message: messages.Attach) -> _Segment:
        segment, geometry = self._segment, message.geometry
        if segment is not None and segment.geometry == geometry:
            return segment
        layout = _layout(self.budget_bytes, geometry, self.setting)
        if segment is not None:
            if self._attached:
                raise BadSetting(
                    f"rank {message.rank} has blocks of {_describe(geometry)}, and host memory holds those "
                    f"of rank {min(self._attached.values())}, of {_describe(segment.geometry)}: all ranks of "
                    "a replica serve the same model with the same settings"
                )
            self._clear(segment)
        descriptor = make_segment(layout, self.setting)
        try:
            mapped = MappedArena(descriptor, layout)
        except OSError as error:
            os.close(descriptor)
            raise BadSetting(
                f"{self.setting}: {layout.total_bytes / 1e9:.2f} GB of shared memory cannot be mapped: "
                f"{error.strerror}"
            ) from error
        self._segment = _Segment(
            geometry=geometry, descriptor=descriptor, mapped=mapped, index=HostIndex(layout.num_slots)
        )
        if self.disk is not None:
            self.disk.open(self._segment.index, self._segment.mapped.arena, geometry)
        logger.info(
            "host memory: room for %d blocks of %s, %.2f GB",
            layout.num_slots,
            _describe(geometry),
            layout.total_bytes / 1e9,
        )
        return self._segment

    def _clear(self, segment: _Segment) -> None:
        told = self.take_events()
        cleared = [
            msgspec.structs.replace(event, kind="evicted", parent=b"", reason="cleared")
            for event in self.contents()
        ]
        self._events = [*told, *cleared]
        logger.warning("host memory held blocks of %s: cleared", _describe(segment.geometry))
        self.close()

    def _switch_off(self, index: HostIndex, reason: str) -> None:
        if self._off_reason is None:
            logger.error("host memory is switched off, and serving goes on without it: %s", reason)
            self._off_reason = reason
            index.switch_off(reason)
            if self.disk is not None:
                self.disk.switch_off(reason)

    def _made(self) -> _Segment:
        if self._segment is None:
            raise InvariantBroken("host memory is asked for before a rank has attached")
        return self._segment


_NO_SLOTS = HostOccupancy(total=0, writing=0, leased=0, cached=0, empty=0)


def _layout(budget_bytes: int, geometry: HostGeometry, setting: str) -> ArenaLayout:
    num_slots = max(0, budget_bytes - PAGE_BYTES) // (geometry.slot_bytes + CHECKSUM_BYTES)
    if num_slots < 1:
        raise BadSetting(
            f"{setting}: {budget_bytes} bytes hold no block, and one takes {geometry.slot_bytes}; 0 is none"
        )
    return ArenaLayout(num_slots=min(num_slots, MAX_SLOTS), slot_bytes=geometry.slot_bytes)


def _describe(geometry: HostGeometry) -> str:
    identity = geometry.identity.hex()[:8]
    return f"{geometry.block_size} tokens and {geometry.slot_bytes} bytes (identity {identity})"


def _after(question: messages.Find | messages.Prefetch | messages.Reserve) -> BlockHash | None:
    return None if question.after is None else BlockHash(question.after)


def _lease(lease: HostLease | None) -> messages.Lease | messages.Nothing:
    if lease is None:
        return messages.Nothing()
    return messages.Lease(
        lease_id=lease.lease_id,
        num_present=lease.num_present,
        slots=lease.slots.astype(np.dtype("<i8")).tobytes(),
        num_from_disk=lease.num_from_disk,
    )
