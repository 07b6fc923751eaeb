"""Host memory as arrays: its slots, one row each, and the table of their checksums.

Decides which blocks of a copy are summed: summing a block costs two to three times as much as copying it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from keepwarm.core.errors import BadSetting
from keepwarm.core.host_tier import CHECKSUM_BYTES, HostArena
from keepwarm.core.ids import HostSlots
from keepwarm.core.layout import CacheLayout

SUM_ONE_IN: Final = 32
"""Slots whose number divides by this are summed, and the first and the last of every copy."""


class ArenaSlots:
    """Views into a `HostArena`; once nobody holds this any more, the memory can be unmapped.

    Only the leading `used_bytes` of a slot are summed, where a block does not fill it.
    """

    def __init__(
        self,
        arena: HostArena,
        layout: CacheLayout,
        *,
        used_bytes: int | None = None,
        sum_one_in: int = SUM_ONE_IN,
    ) -> None:
        """Raises `BadSetting` where the memory was cut for other blocks."""
        _check(arena, layout)
        cut = arena.layout
        memory = np.frombuffer(arena.memory, dtype=np.uint8)
        self._sums = memory[: cut.num_slots * CHECKSUM_BYTES].view(np.uint64)
        self._sum_one_in = sum_one_in
        self.rows = memory[cut.slots_offset : cut.total_bytes].reshape(cut.num_slots, cut.slot_bytes)
        """(num_slots, slot_bytes) uint8"""
        self._summed = self.rows[:, :used_bytes]

    def __len__(self) -> int:
        return len(self.rows)

    def summed(self, slots: HostSlots) -> npt.NDArray[np.bool_]:
        """Which slots of a whole copy are summed when they are written, (len(slots),)."""
        chosen: npt.NDArray[np.bool_] = slots % self._sum_one_in == 0
        chosen[[0, -1]] = True
        return chosen

    def store_sums(self, slots: HostSlots, summed: npt.NDArray[np.bool_]) -> None:
        """The slots have been written: sums of those that are `summed`, none for the others."""
        self._sums[slots] = 0
        for slot in slots[summed].tolist():
            self._sums[slot] = self._sum(slot)

    def are_sound(self, slots: HostSlots) -> bool:
        """Whether each slot that has a sum holds what was summed."""
        with_sum = slots[self._sums[slots] != 0]
        return all(self._sums[slot] == self._sum(slot) for slot in with_sum.tolist())

    def _sum(self, slot: int) -> int:
        return int.from_bytes(blake3(self._summed[slot].data).digest(CHECKSUM_BYTES), "little") or 1


def _check(arena: HostArena, layout: CacheLayout) -> None:
    cut = arena.layout
    if cut.slot_bytes != layout.bytes_per_block:
        raise BadSetting(
            f"--host-cache-gb: host memory is cut into slots of {cut.slot_bytes} bytes, and a block of this "
            f"model (--block-size {layout.block_size}) has {layout.bytes_per_block}"
        )
    if arena.memory.nbytes < cut.total_bytes or cut.num_slots < 1:
        raise BadSetting(
            f"--host-cache-gb: {cut.num_slots} slots need {cut.total_bytes} bytes of host memory, "
            f"and {arena.memory.nbytes} are mapped"
        )
    if arena.memory.readonly:
        raise BadSetting(f"--host-cache-gb: {arena.memory.nbytes} bytes of host memory are mapped read-only")
