"""Empty blocks, kept as runs of neighbours.

A run of neighbouring blocks is one contiguous piece of device memory, which attention can read
without gathering. So whoever asks for blocks gets as few runs as there are.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from keepwarm.core.errors import InvariantBroken
from keepwarm.core.ids import BlockId, BlockIds, block_ids


class EmptyRuns:
    """A set of block ids, stored as maximal half-open runs [start, end)."""

    def __init__(self, num_blocks: int) -> None:
        self._end_of: dict[int, int] = {0: num_blocks} if num_blocks else {}
        self._start_of: dict[int, int] = {num_blocks: 0} if num_blocks else {}
        self._num_blocks = num_blocks

    def __len__(self) -> int:
        return self._num_blocks

    def mask(self, num_blocks: int) -> npt.NDArray[np.bool_]:
        """Which blocks are in the set, (num_blocks,). Raises `InvariantBroken` where runs overlap."""
        mask = np.zeros(num_blocks, dtype=np.bool_)
        for start, end in self._end_of.items():
            mask[start:end] = True
        if np.count_nonzero(mask) != self._num_blocks:
            raise InvariantBroken("the empty runs overlap or miscount")
        return mask

    @property
    def num_runs(self) -> int:
        return len(self._end_of)

    def add(self, blocks: BlockIds) -> None:
        """Put blocks back, in any order, and join them with their neighbours. Python a run."""
        if not len(blocks):
            return
        ordered = np.sort(blocks)
        breaks = np.flatnonzero(ordered[1:] - ordered[:-1] != 1) + 1
        for first, end in pairwise([0, *breaks.tolist(), len(ordered)]):
            self._add_run(int(ordered[first]), int(ordered[end - 1]) + 1)
        self._num_blocks += len(ordered)

    def _add_run(self, start: int, end: int) -> None:
        start = self._start_of.pop(start, start)
        end = self._end_of.pop(end, end)
        self._end_of[start] = end
        self._start_of[end] = start

    def take(self, count: int, *, after: BlockId | None) -> BlockIds:
        """Remove `count` blocks (there are that many), in as few runs as can be.

        The run that continues `after` comes first, then the smallest one that holds all the
        rest, then the largest ones.
        """
        taken = [block_ids([])]
        missing = count
        if after is not None and after + 1 in self._end_of:
            taken.append(self._cut(after + 1, missing))
            missing -= len(taken[-1])
        for start in self._best_starts(missing):
            taken.append(self._cut(start, missing))
            missing -= len(taken[-1])
        return np.concatenate(taken)

    def _best_starts(self, count: int) -> list[int]:
        """Runs that hold `count` together: the largest, and last the smallest that holds the rest."""
        if count == 0:
            return []
        by_length = sorted((end - start, start) for start, end in self._end_of.items())
        starts: list[int] = []
        while by_length[-1][0] < count:
            length, start = by_length.pop()
            starts.append(start)
            count -= length
        return [*starts, by_length[bisect_left(by_length, (count, 0))][1]]

    def _cut(self, start: int, count: int) -> BlockIds:
        end = self._end_of.pop(start)
        cut_at = min(start + count, end)
        if cut_at == end:
            del self._start_of[end]
        else:
            self._end_of[cut_at] = end
            self._start_of[end] = cut_at
        self._num_blocks -= cut_at - start
        return np.arange(start, cut_at)
