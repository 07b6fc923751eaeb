"""Where each named block stands: its depth, and the blocks that stand before it.

Named blocks are a forest, as names are: a block's parent holds the tokens just before its own.
The forest is kept as chains, arrays of blocks that follow each other. Who continues a chain at
its end is appended; who continues it earlier begins another, which remembers where it left:

    [ 7  8  9 | 12 13 | 20 ]            a conversation and its later turns
               └──[ 31 32 ]             a rewind, a subagent, another answer

So the blocks of a whole prefix are a few slices, and memory is one entry a named block.

Only leaves are ever removed, so a chain is whole up to its length whenever a block in it is named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from keepwarm.core.errors import InvariantBroken
from keepwarm.core.ids import BlockId, BlockIds, block_ids

_UNNAMED = -1
_MAX_SLICES = 32
"""A chain that hangs deeper keeps a copy of all that stands before it."""


@dataclass(slots=True, eq=False)
class _Chain:
    number: int
    before: _Chain | BlockIds
    """Whom it left at depth `start`; or the very blocks [0, start)."""
    start: int
    num_slices: int
    """Arrays that a path through this chain is put together from."""
    blocks: BlockIds
    """Room for more than `length`."""
    length: int = 0

    @property
    def end(self) -> int:
        return self.start + self.length

    def append(self, blocks: BlockIds) -> None:
        length = self.length + len(blocks)
        if length > len(self.blocks):
            grown = np.empty(max(length, 2 * self.length), dtype=np.int64)
            grown[: self.length] = self.blocks[: self.length]
            self.blocks = grown
        self.blocks[self.length : length] = blocks
        self.length = length

    def path(self, end: int) -> BlockIds:
        """The blocks of depth [0, end), in order; a copy."""
        slices: list[BlockIds] = []
        before: _Chain | BlockIds = self
        while isinstance(before, _Chain):
            slices.append(before.blocks[: end - before.start])
            end, before = before.start, before.before
        return np.concatenate([before, *reversed(slices)])


class Chains:
    """All named blocks of one rank."""

    def __init__(self, num_blocks: int) -> None:
        self._depth = np.full(num_blocks, _UNNAMED, dtype=np.int64)
        self._number = np.zeros(num_blocks, dtype=np.int64)  # of the chain it stands in
        self._chains: dict[int, _Chain] = {}
        self._num_begun = 0

    def mask(self) -> npt.NDArray[np.bool_]:
        """Which blocks are named, (num_blocks,)."""
        return np.not_equal(self._depth, _UNNAMED)

    def path(self, block: BlockId) -> BlockIds:
        """The blocks of the prefix that ends with a named block, itself included; a copy."""
        return self._chains[int(self._number[block])].path(int(self._depth[block]) + 1)

    def append(self, parent: BlockId | None, blocks: BlockIds) -> None:
        """`blocks`, in order, follow a named block; without one they begin a prefix."""
        if not len(blocks):
            return
        chain = self._chain_after(parent)
        self._depth[blocks] = np.arange(chain.end, chain.end + len(blocks))
        self._number[blocks] = chain.number
        chain.append(blocks)

    def remove(self, leaves: BlockIds) -> None:
        """Blocks lose their names; whoever follows one of them is among them."""
        for number, count in Counter[int](self._number[leaves].tolist()).items():
            chain = self._chains[number]
            chain.length -= count
            if not chain.length:
                del self._chains[number]
        self._depth[leaves] = _UNNAMED

    def runs(self) -> Iterator[tuple[BlockId | None, BlockIds]]:
        """All named blocks in runs that follow each other, each after the block that it follows
        (None: a prefix begins), which was in a run before."""
        for chain in self._chains.values():
            before = chain.before
            parent: BlockId | None
            if isinstance(before, _Chain):  # at a block of its own, not at one before it
                parent = BlockId(int(before.blocks[chain.start - before.start - 1]))
            else:
                parent = BlockId(int(before[-1])) if len(before) else None
            yield parent, chain.blocks[: chain.length].copy()

    def following(self, blocks: BlockIds) -> BlockIds:
        """Named `blocks`, and every block whose prefix one of them stands in. O(named blocks)."""
        wanted = np.zeros(len(self._depth), dtype=np.bool_)
        wanted[blocks] = True
        first_depth: dict[int, int] = {}  # of a wanted block on the path through a chain
        found = [block_ids([])]
        for chain in self._chains.values():  # who was left comes before who left it
            own = chain.blocks[: chain.length]
            before = chain.before
            if isinstance(before, _Chain):
                inherited = first_depth.get(before.number, chain.start)
            else:
                inherited = int(np.argmax(wanted[before])) if np.any(wanted[before]) else chain.start
            hits = np.flatnonzero(wanted[own])
            if inherited < chain.start:
                first_depth[chain.number] = inherited
                found.append(own)
            elif len(hits):
                first_depth[chain.number] = chain.start + int(hits[0])
                found.append(own[int(hits[0]) :])
        return np.concatenate(found)

    def check(self) -> None:
        """Raise `InvariantBroken` unless every named block stands where it says, after its parent."""
        for chain in self._chains.values():
            blocks = chain.blocks[: chain.length]
            self._check_depths(chain, blocks, chain.start)
            if np.any(self._number[blocks] != chain.number):
                raise InvariantBroken(f"chain {chain.number} holds a block of another")
            if not isinstance(chain.before, _Chain):
                self._check_depths(chain, chain.before, 0)
            elif chain.before.end < chain.start:
                raise InvariantBroken(f"chain {chain.number} lost the blocks before it")
        num_named = int(np.count_nonzero(self.mask()))
        if sum(chain.length for chain in self._chains.values()) != num_named:
            raise InvariantBroken(f"the chains do not hold the {num_named} named blocks")

    def _check_depths(self, chain: _Chain, blocks: BlockIds, start: int) -> None:
        if np.any(self._depth[blocks] != np.arange(start, start + len(blocks))):
            raise InvariantBroken(f"chain {chain.number} holds a block that stands elsewhere")

    def _chain_after(self, parent: BlockId | None) -> _Chain:
        if parent is None:
            return self._begin(before=block_ids([]), start=0, num_slices=2)
        depth = int(self._depth[parent])
        if depth == _UNNAMED:
            raise InvariantBroken(f"block {parent} gets a named child and has no name")
        chain = self._chains[int(self._number[parent])]
        start = depth + 1
        if chain.end == start:
            return chain
        if chain.num_slices == _MAX_SLICES:
            return self._begin(before=chain.path(start), start=start, num_slices=2)
        return self._begin(before=chain, start=start, num_slices=chain.num_slices + 1)

    def _begin(self, *, before: _Chain | BlockIds, start: int, num_slices: int) -> _Chain:
        self._num_begun += 1
        chain = _Chain(
            number=self._num_begun, before=before, start=start, num_slices=num_slices, blocks=block_ids([])
        )
        self._chains[chain.number] = chain
        return chain
