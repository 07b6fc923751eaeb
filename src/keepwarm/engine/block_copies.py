"""Whole blocks between the KV pools and host memory, with the sums that say whether they came back whole.

Device memory is host memory here: a block of all layers is one strided view, and moving it one copy by
numpy, which runs on the calling thread alone and, like blake3, without Python's lock. So it may be done
beside the works. That nothing else touches the blocks and slots meanwhile is for `copies_in_flight` to prove.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from keepwarm.core.ids import BlockIds, HostSlots
from keepwarm.core.step import BlockCopies, CopyResult
from keepwarm.engine.arena_slots import ArenaSlots

PIECE_BYTES: Final = 8 << 20
"""What is moved at a time: small enough that what is summed is still in the processor's cache, and that
whoever is more urgent never waits long."""


class BlockMover:
    """Holds no state of a copy; several threads may move different blocks at the same time."""

    def __init__(self, block_parts: Sequence[torch.Tensor], slots: ArenaSlots) -> None:
        """`block_parts`: `KvPools.block_parts`."""
        self._slots = slots
        self._parts = list(_parts(block_parts, slots.rows))
        self._piece_blocks = max(1, PIECE_BYTES // slots.rows.shape[1])

    def begin(self, copies: BlockCopies) -> Progress:
        """Moves nothing yet."""
        return Progress(copies=copies, summed=self._slots.summed(copies.slots))

    def move_piece(self, progress: Progress) -> None:
        """Some more blocks. Not to be called once it `has_ended`, nor for one copy by two threads."""
        copies, first = progress.copies, progress.num_done
        piece = slice(first, first + self._piece_blocks)
        blocks, slots = copies.blocks[piece], copies.slots[piece]
        if copies.direction == "demote":
            self._demote(blocks, slots)
            self._slots.store_sums(slots, progress.summed[piece])
        elif self._slots.are_sound(slots):
            self._promote(blocks, slots)
        else:
            progress.is_sound = False
            return
        progress.num_done += len(blocks)

    def result(self, progress: Progress, copy_s: float) -> CopyResult:
        """Of a copy that has ended."""
        return CopyResult(
            copy_id=progress.copies.copy_id,
            is_sound=progress.is_sound,
            num_bytes=progress.num_done * self._slots.rows.shape[1],
            copy_s=copy_s,
        )

    def _demote(self, blocks: BlockIds, slots: HostSlots) -> None:
        for block, slot, length in _runs(blocks, slots):
            for part in self._parts:
                part.slots[slot : slot + length] = part.blocks[block : block + length]

    def _promote(self, blocks: BlockIds, slots: HostSlots) -> None:
        for block, slot, length in _runs(blocks, slots):
            for part in self._parts:
                part.blocks[block : block + length] = part.slots[slot : slot + length]


@dataclass(slots=True, kw_only=True)
class Progress:
    """One copy and how many of its blocks are moved."""

    copies: BlockCopies
    summed: npt.NDArray[np.bool_]
    num_done: int = field(default=0)
    is_sound: bool = field(default=True)
    """False: a sum did not match, and no more is moved."""

    @property
    def has_ended(self) -> bool:
        return self.num_done == len(self.copies.blocks) or not self.is_sound


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Some layers' share of all blocks and of all slots, both as (n, num_parts, bytes of a part)."""

    blocks: npt.NDArray[np.uint8]
    slots: npt.NDArray[np.uint8]


def _parts(block_parts: Sequence[torch.Tensor], rows: npt.NDArray[np.uint8]) -> Iterator[_Part]:
    first = 0
    for part in block_parts:
        blocks = part.numpy().transpose(1, 0, 2)
        _, num_parts, num_bytes = blocks.shape
        last = first + num_parts * num_bytes
        slots = np.lib.stride_tricks.as_strided(
            rows[:, first:last], (len(rows), num_parts, num_bytes), (rows.strides[0], num_bytes, 1)
        )
        yield _Part(blocks=blocks, slots=slots)
        first = last


def _runs(blocks: BlockIds, slots: HostSlots) -> Iterator[tuple[int, int, int]]:
    """(first block, first slot, length) of stretches in which both follow each other."""
    breaks = np.flatnonzero((np.diff(blocks) != 1) | (np.diff(slots) != 1)) + 1
    edges = [0, *breaks.tolist(), len(blocks)]
    for start, end in pairwise(edges):
        yield int(blocks[start]), int(slots[start]), end - start
