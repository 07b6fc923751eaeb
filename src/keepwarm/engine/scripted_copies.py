"""Copies of a scripted executor: digests go to host memory and back, as late as anyone may see it.

A copy moves everything in the moment it ends, so many steps after it was planned. Whoever uses its blocks
or slots too early, or gives them to others, finds the wrong contents.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from keepwarm.core.errors import BadSetting, InvariantBroken
from keepwarm.core.host_tier import HostArena
from keepwarm.core.layout import CacheLayout
from keepwarm.core.step import BlockCopies, CopyResult, StepId, StepPlan
from keepwarm.engine.arena_slots import ArenaSlots

DIGEST_BYTES = 8
NOT_COMPUTED = -1
"""What a place holds that no work has written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    """A copy of a plan's that ends once step `ends_at` is computed."""

    copies: BlockCopies
    step_id: StepId
    ends_at: int


class ScriptedCopies:
    """`digests` (num_blocks, block_size) int64 is what blocks hold; a slot begins with a block's digests."""

    def __init__(self, digests: npt.NDArray[np.int64], layout: CacheLayout) -> None:
        self._digests = digests
        self._layout = layout
        self._arena: ArenaSlots | None = None
        self._begun: deque[_Begun] = deque()
        self._ended: list[tuple[StepId, CopyResult]] = []
        self.corrupt_next = False
        """Flip a bit of what the next promotion copies, which is then not sound."""
        self.block_s = 0.0
        """How long a copy is said to take, a block."""

    def attach(self, arena: HostArena) -> int:
        """How many slots there are."""
        used_bytes = self._layout.block_size * DIGEST_BYTES
        if arena.layout.slot_bytes < used_bytes:
            raise BadSetting(
                f"--host-cache-gb: a slot of {arena.layout.slot_bytes} bytes is too small for the scripted "
                f"engine, which keeps {used_bytes}"
            )
        self._arena = ArenaSlots(arena, self._layout, used_bytes=used_bytes, sum_one_in=1)
        return len(self._arena)

    def begin(self, plan: StepPlan, num_steps: int) -> None:
        """Those `before_works` end at once, the others `num_steps` steps later."""
        for copies in plan.copies:
            begun = _Begun(copies=copies, step_id=plan.step_id, ends_at=plan.step_id + num_steps)
            if copies.before_works:
                self._end(begun)
            else:
                self._begun.append(begun)

    def advance(self, step_id: StepId) -> None:
        """This step is computed: copies that end with it do so now."""
        due = [begun for begun in self._begun if begun.ends_at <= step_id]
        for begun in due:
            self._begun.remove(begun)
            self._end(begun)

    def take(self, step_id: StepId, *, awaited: bool) -> tuple[CopyResult, ...]:
        """Results of copies of plans up to this one; with `awaited` of at least one, if any is left."""
        if awaited and not any(ended_id <= step_id for ended_id, _ in self._ended):
            self._end_oldest(step_id)
        taken = tuple(result for ended_id, result in self._ended if ended_id <= step_id)
        self._ended = [(ended_id, result) for ended_id, result in self._ended if ended_id > step_id]
        return taken

    def close(self) -> None:
        """Host memory may be unmapped."""
        self._arena = None
        self._begun.clear()

    def _end_oldest(self, step_id: StepId) -> None:
        if self._begun and self._begun[0].step_id <= step_id:
            self._end(self._begun.popleft())

    def _end(self, begun: _Begun) -> None:
        copies = begun.copies
        is_sound = self._demote(copies) if copies.direction == "demote" else self._promote(copies)
        result = CopyResult(
            copy_id=copies.copy_id,
            is_sound=is_sound,
            num_bytes=len(copies.blocks) * self._layout.bytes_per_block,
            copy_s=len(copies.blocks) * self.block_s,
        )
        self._ended.append((begun.step_id, result))

    def _demote(self, copies: BlockCopies) -> bool:
        arena = self._attached()
        contents = self._digests[copies.blocks]
        for index in np.flatnonzero((contents == NOT_COMPUTED).any(axis=1)):
            raise InvariantBroken(f"copy {copies.copy_id}: block {copies.blocks[index]} was never computed")
        num_bytes = contents.shape[1] * DIGEST_BYTES
        arena.rows[copies.slots, :num_bytes] = contents.view(np.uint8)
        arena.store_sums(copies.slots, arena.summed(copies.slots))
        return True

    def _promote(self, copies: BlockCopies) -> bool:
        arena = self._attached()
        num_bytes = self._layout.block_size * DIGEST_BYTES
        corrupted, self.corrupt_next = self.corrupt_next, False
        if corrupted:
            arena.rows[copies.slots[0], 0] ^= 1
        self._digests[copies.blocks] = arena.rows[copies.slots, :num_bytes].view(np.int64)
        return arena.are_sound(copies.slots) and not corrupted

    def _attached(self) -> ArenaSlots:
        if self._arena is None:
            raise InvariantBroken("a copy was planned without host memory")
        return self._arena
