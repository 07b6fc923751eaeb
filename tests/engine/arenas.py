"""Host memory for executors under test, and copies for their plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from keepwarm.core.host_tier import ArenaLayout, HostArena
from keepwarm.core.ids import block_ids
from keepwarm.core.layout import CacheLayout
from keepwarm.core.step import BlockCopies, CopyId


def make_arena(layout: CacheLayout, *, num_slots: int = 16) -> HostArena:
    """Fresh memory that fits blocks of this layout."""
    cut = ArenaLayout(num_slots=num_slots, slot_bytes=layout.bytes_per_block)
    return HostArena(memory=memoryview(bytearray(cut.total_bytes)), layout=cut)


def copies(
    copy_id: int,
    direction: Literal["promote", "demote"],
    blocks: Sequence[int],
    slots: Sequence[int],
    *,
    before_works: bool = False,
) -> BlockCopies:
    return BlockCopies(
        copy_id=CopyId(copy_id),
        direction=direction,
        blocks=block_ids(blocks),
        slots=block_ids(slots),
        before_works=before_works,
    )


def flip_a_bit(arena: HostArena, slot: int, *, offset: int = 0) -> None:
    """As memory does that goes bad."""
    arena.memory[arena.layout.slots_offset + slot * arena.layout.slot_bytes + offset] ^= 1
