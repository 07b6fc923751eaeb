"""Empty blocks, kept as runs of neighbours.

A run of neighbouring blocks is one contiguous piece of device memory, which attention can read
without gathering. So whoever asks for blocks gets as few runs as there are.
"""

from __future__ import annotations

from collections.abc import Iterator

from keepwarm.core.ids import BlockId


class EmptyRuns:
    """A set of block ids, stored as maximal half-open runs [start, end)."""

    def __init__(self, num_blocks: int) -> None:
        self._end_of: dict[int, int] = {0: num_blocks} if num_blocks else {}
        self._start_of: dict[int, int] = {num_blocks: 0} if num_blocks else {}
        self._num_blocks = num_blocks

    def __len__(self) -> int:
        return self._num_blocks

    def __iter__(self) -> Iterator[BlockId]:
        for start, end in sorted(self._end_of.items()):
            yield from map(BlockId, range(start, end))

    @property
    def num_runs(self) -> int:
        return len(self._end_of)

    def add(self, block: BlockId) -> None:
        """Put a block back and join it with its neighbours. O(1)."""
        start = self._start_of.pop(block, block)
        end = self._end_of.pop(block + 1, block + 1)
        self._end_of[start] = end
        self._start_of[end] = start
        self._num_blocks += 1

    def take(self, count: int, *, after: BlockId | None) -> list[BlockId]:
        """Remove `count` blocks (there are that many), in as few runs as can be.

        The run that continues `after` comes first, then the smallest one that holds all the
        rest, then the largest ones.
        """
        taken: list[BlockId] = []
        if after is not None and after + 1 in self._end_of:
            taken += self._cut(after + 1, count)
        while len(taken) < count:
            missing = count - len(taken)
            taken += self._cut(self._best_start(missing), missing)
        return taken

    def _best_start(self, count: int) -> int:
        fitting = min(
            ((end - start, start) for start, end in self._end_of.items() if end - start >= count),
            default=None,
        )
        if fitting is not None:
            return fitting[1]
        return max((end - start, -start) for start, end in self._end_of.items())[1] * -1

    def _cut(self, start: int, count: int) -> list[BlockId]:
        end = self._end_of.pop(start)
        cut_at = min(start + count, end)
        if cut_at == end:
            del self._start_of[end]
        else:
            self._end_of[cut_at] = end
            self._start_of[end] = cut_at
        self._num_blocks -= cut_at - start
        return [BlockId(block) for block in range(start, cut_at)]
