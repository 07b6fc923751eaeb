"""Cached blocks, in the order in which they will be evicted. Knows no names.

What an `OrderedDict` does a block at a time, in arrays: every block that comes is written to the
end of a log, and an entry counts only while it is its block's latest and nobody holds the block.
So a whole conversation comes in three array operations, and leaves in none.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from keepwarm.core.errors import InvariantBroken
from keepwarm.core.ids import BlockIds, block_ids

_LOG_ENTRIES_PER_BLOCK = 4
"""Between two compactions, which look at the whole log, at least half of it is written. 2 is the
least: a compaction keeps up to one entry a block, also of those that are about to be added."""
_MIN_WINDOW = 256
_NOWHERE = -1
_COMPACTED_AT_ONCE = 1 << 14
"""What is in between stays in the processor's cache."""


class EvictionQueue:
    """A set of block ids with an order: who came first leaves first."""

    def __init__(self, references: npt.NDArray[np.int64]) -> None:
        """`references` are each block's holders, (num_blocks,); the caller's, only read here."""
        num_blocks = len(references)
        self._references = references
        self._log: BlockIds = np.empty(num_blocks * _LOG_ENTRIES_PER_BLOCK, dtype=np.int64)
        self._head = 0
        self._tail = 0
        self._place = np.zeros(num_blocks, dtype=np.int64)  # a block's latest entry, if it has any
        self._num_queued = 0

    def __len__(self) -> int:
        return self._num_queued

    def mask(self) -> npt.NDArray[np.bool_]:
        """Which blocks are in the queue, (num_blocks,)."""
        mask = np.zeros(len(self._place), dtype=np.bool_)
        mask[self._log[self._head : self._tail][self._valid(self._head, self._tail)]] = True
        return mask

    def add(self, blocks: BlockIds) -> None:
        """Put blocks that nobody holds, and that are not in the queue, at its end in this order."""
        if self._tail + len(blocks) > len(self._log):
            self._compact()
        start, self._tail = self._tail, self._tail + len(blocks)
        self._log[start : self._tail] = blocks
        self._place[blocks] = np.arange(start, self._tail)
        self._num_queued += len(blocks)

    def remove(self, num_blocks: int) -> None:
        """So many blocks of the queue, wherever they stand, are held from now on."""
        self._num_queued -= num_blocks

    def discard(self, blocks: BlockIds) -> None:
        """None of `blocks` is in the queue any more; those that nobody holds were."""
        self._num_queued -= int(np.count_nonzero(self._references[blocks] == 0))
        self._place[blocks] = _NOWHERE

    def pop(self, count: int) -> BlockIds:
        """Take the first `count` out; there must be that many."""
        if count > self._num_queued:
            raise InvariantBroken(f"{count} blocks to evict of {self._num_queued}")
        popped = [block_ids([])]
        missing, window = count, max(count, _MIN_WINDOW)
        while missing:
            taken = self._pop_from(min(self._head + window, self._tail), missing)
            popped.append(taken)
            missing -= len(taken)
            window *= 2
        return np.concatenate(popped)

    def _pop_from(self, end: int, most: int) -> BlockIds:
        """Up to `most` of the entries before `end`; the head moves past what was looked at."""
        entries = self._log[self._head : end]
        valid = self._valid(self._head, end)[:most]
        taken = entries[valid]
        self._head = self._head + int(valid[-1]) + 1 if len(valid) == most else end
        self._num_queued -= len(taken)
        return taken

    def _valid(self, start: int, end: int) -> npt.NDArray[np.int64]:
        """Offsets from `start` of the entries that count."""
        entries = self._log[start:end]
        is_latest = self._place[entries] == np.arange(start, end)
        return np.flatnonzero(is_latest & (self._references[entries] == 0))

    def _compact(self) -> None:
        num_kept = 0
        for start in range(self._head, self._tail, _COMPACTED_AT_ONCE):
            end = min(start + _COMPACTED_AT_ONCE, self._tail)
            kept = self._log[start:end][self._valid(start, end)]
            first, num_kept = num_kept, num_kept + len(kept)
            self._log[first:num_kept] = kept
            self._place[kept] = np.arange(first, num_kept)
        self._head, self._tail = 0, num_kept
