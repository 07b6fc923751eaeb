"""Which blocks and slots are being copied, and so what a plan must not do. Moves no byte, knows no tensor.

A copy counts as in flight until its result is collected, even where its bytes have long been moved: only
then does whoever plans know.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from keepwarm.core.errors import InvariantBroken
from keepwarm.core.ids import BlockIds, HostSlots
from keepwarm.core.step import BlockCopies, CopyId, StepPlan

Counts = npt.NDArray[np.int32]
"""How many copies in flight use each block or slot in one way."""


class CopiesInFlight:
    """Every wrong copy, and every work that would meet one, ends here as `InvariantBroken`."""

    def __init__(self, num_blocks: int) -> None:
        self._copies: dict[CopyId, BlockCopies] = {}
        self._last_id = 0
        self._blocks_read, self._blocks_written = _counts(num_blocks), _counts(num_blocks)
        self._slots_read, self._slots_written = _counts(0), _counts(0)

    def __len__(self) -> int:
        return len(self._copies)

    def use_slots(self, num_slots: int) -> None:
        """Host memory of so many slots is there from now on."""
        if self._copies:
            raise InvariantBroken(f"host memory was changed with {len(self._copies)} copies in flight")
        self._slots_read, self._slots_written = _counts(num_slots), _counts(num_slots)

    def begin(self, plan: StepPlan) -> None:
        """Check a plan's copies and count them in; those `before_works` come before all others."""
        for number, copies in enumerate(plan.copies, start=self._last_id + 1):
            if copies.copy_id != number:
                raise InvariantBroken(f"step {plan.step_id} has copy {copies.copy_id} where {number} is next")
        for copies in sorted(plan.copies, key=lambda copies: not copies.before_works):
            self._begin(copies, f"step {plan.step_id}, copy {copies.copy_id} ({copies.direction})")

    def check_work(self, name: str, read: BlockIds, written: BlockIds) -> None:
        """`read` and `written`: blocks that a work, called `name` in an error, reads and writes."""
        if not self._copies:
            return
        _refuse(f"{name}, in a block that is being copied up", read, self._blocks_written)
        _refuse(f"{name}, over a block that is being copied down", written, self._blocks_read)

    def end(self, copy_id: CopyId) -> None:
        """Its result is being collected."""
        self._count(self._copies.pop(copy_id), -1)

    def _begin(self, copies: BlockCopies, name: str) -> None:
        if len(copies.blocks) != len(copies.slots) or not len(copies.blocks):
            raise InvariantBroken(f"{name}: {len(copies.blocks)} blocks and {len(copies.slots)} slots")
        if copies.before_works and copies.direction == "promote":
            raise InvariantBroken(f"{name}: what is copied up cannot come before the works")
        _check_ids(f"{name}: block", copies.blocks, len(self._blocks_read))
        _check_ids(f"{name}: slot", copies.slots, len(self._slots_read))
        if copies.direction == "promote":
            _refuse(f"{name}: block is being read", copies.blocks, self._blocks_read)
            _refuse(f"{name}: slot is being written", copies.slots, self._slots_written)
        else:
            _refuse(f"{name}: slot is being read", copies.slots, self._slots_read)
            _refuse(f"{name}: slot is being written", copies.slots, self._slots_written)
        _refuse(f"{name}: block is being written", copies.blocks, self._blocks_written)
        self._copies[copies.copy_id] = copies
        self._last_id = max(self._last_id, copies.copy_id)
        self._count(copies, 1)

    def _count(self, copies: BlockCopies, change: int) -> None:
        if copies.direction == "promote":
            self._slots_read[copies.slots] += change
            self._blocks_written[copies.blocks] += change
            return
        self._slots_written[copies.slots] += change
        if not copies.before_works:  # those have been read when the works begin
            self._blocks_read[copies.blocks] += change


def _counts(length: int) -> Counts:
    return np.zeros(length, dtype=np.int32)


def _check_ids(name: str, ids: BlockIds | HostSlots, limit: int) -> None:
    for number in (int(ids.min()), int(ids.max())):
        if not 0 <= number < limit:
            raise InvariantBroken(f"{name} {number} of {limit}")
    if len(np.unique(ids)) != len(ids):
        raise InvariantBroken(f"{name} named twice")


def _refuse(name: str, ids: BlockIds | HostSlots, counts: Counts) -> None:
    found = np.flatnonzero(counts[ids])
    if found.size:
        raise InvariantBroken(f"{name}: {int(ids[found[0]])}")
