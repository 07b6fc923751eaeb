"""L1: how blocks lie in host memory, and what a rank asks of whoever keeps the index of it.

One segment of shared memory, which the process that keeps the index owns and ranks map:

    [ checksums: 8 bytes a slot, 0 = none │ pad to a page │ slot 0 │ slot 1 │ … ]

A slot holds one block: of every layer in order its keys, then its values, as the device has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NewType, Protocol

from keepwarm.core.ids import BlockHash, HostSlots

PAGE_BYTES = 4096
CHECKSUM_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaLayout:
    """How a segment is cut."""

    num_slots: int
    slot_bytes: int

    @property
    def slots_offset(self) -> int:
        """Where slot 0 begins, on a page."""
        return -(-self.num_slots * CHECKSUM_BYTES // PAGE_BYTES) * PAGE_BYTES

    @property
    def total_bytes(self) -> int:
        return self.slots_offset + self.num_slots * self.slot_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HostArena:
    """The mapped segment. Whoever made it keeps it mapped until the executor is closed."""

    memory: memoryview
    """Writable, of `layout.total_bytes`."""
    layout: ArenaLayout


LeaseId = NewType("LeaseId", int)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLease:
    """Slots that stay as they are until `release`, or, reserved ones, become shareable by `written`."""

    lease_id: LeaseId
    num_present: int
    """Of the names asked for, so many leading ones are in host memory already."""
    slots: HostSlots
    """`find`: those of the leading names that are there. `reserve`: those of the other names, to be
    written."""
    num_from_disk: int = 0
    """Of the slots of `find`, so many were brought up from disk for this conversation."""


class HostTierLost(Exception):
    """Whoever keeps the index is gone, hangs, or has switched the tier off: go on without."""


class HostTier(Protocol):
    """One rank's view of L1. Calls are short and made by the engine thread; none waits for a copy.

    Names follow each other; `after` is the name just before the first of them, None at a prefix's
    beginning. A name's parent is in L1 whenever the name is. Every lease is released exactly once.
    All methods raise `HostTierLost`.
    """

    def find(self, after: BlockHash | None, names: Sequence[BlockHash]) -> HostLease | None:
        """Hold the slots of the leading `names` that are ready to be read. None: not even the first."""

    def prefetch(self, after: BlockHash | None, names: Sequence[BlockHash]) -> bool:
        """Whether a slower tier is bringing up the first of `names` that is not in host memory now, so
        that waiting for it pays. Starts it where it has it; ask again until it is False, then `find`."""

    def reserve(self, after: BlockHash | None, names: Sequence[BlockHash]) -> HostLease | None:
        """Slots for those of `names` that are not there. None: no room, or `after` is not there.

        Those that are there, and all that stands before, count as used now. A lease without slots
        need not be kept: release it.
        """

    def written(self, lease: HostLease) -> None:
        """The slots of a reservation hold their blocks: others may read them. Still to be released."""

    def release(self, lease: HostLease) -> None:
        """Nothing reads or writes the slots any more. Reserved ones that were not `written` are free."""

    def drop(self, names: Sequence[BlockHash]) -> None:
        """What the slots of these names hold is wrong: nobody may read them again."""

    def switch_off(self, reason: str) -> None:
        """Its contents cannot be trusted: every block is dropped, for all ranks, and none is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostGeometry:
    """What a rank's blocks are; host memory filled by blocks of another kind is not for this rank."""

    identity: bytes
    """Of model, dtype and the installation's cache key (`backend.cache_key`)."""
    block_size: int
    """Tokens a block."""
    slot_bytes: int
