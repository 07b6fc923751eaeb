"""What the scripted executor keeps of layers with a window: digests in blocks of their own, proved
before each step as far back as such a layer reads, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from keepwarm.core.errors import InvariantBroken
from keepwarm.core.ids import BlockIds, Slot
from keepwarm.core.step import BlockChange, ExecutorLimits, SequenceStart
from keepwarm.engine.scripted_copies import NOT_COMPUTED

Digests = npt.NDArray[np.int64]

_NO_BLOCK = -1


class ScriptedWindows:
    """Does nothing where the limits give these layers no blocks of their own."""

    def __init__(self, limits: ExecutorLimits) -> None:
        self._limits = limits
        self._size = limits.layout.block_size
        self._window_tokens = limits.layout.window_tokens or 0
        self._digests = np.full(limits.num_window_blocks * self._size, NOT_COMPUTED, dtype=np.int64)
        self._tables: dict[Slot, BlockIds] = {}

    def __bool__(self) -> bool:
        return bool(self._limits.num_window_blocks)

    def start(self, start: SequenceStart) -> None:
        if not self:
            return
        if start.window_blocks is None:
            raise InvariantBroken(f"{start.request_id} starts without a table of its windows")
        table = np.full(self._limits.layout.blocks_for(self._limits.max_model_len) + 1, _NO_BLOCK)
        table[start.window_first : start.window_first + len(start.window_blocks)] = start.window_blocks
        self._tables[start.slot] = table

    def end(self, slot: Slot) -> None:
        self._tables.pop(slot, None)

    def change(self, change: BlockChange) -> None:
        self._tables[change.slot][change.index] = change.block

    def expect(self, name: str, slot: Slot, start: int, expected: Callable[[], Digests]) -> None:
        """Whatever a token from `start` on reads is there; `expected` are the digests before `start`."""
        first = max(0, start - self._window_tokens + 1)
        if not self or first == start:
            return
        stored = self._digests[self._places(name, slot, first, start)]
        for offset in np.flatnonzero(stored != expected()[first:]):
            raise InvariantBroken(f"{name}: a window block does not hold token {first + offset}")

    def store(self, name: str, slot: Slot, start: int, digests: Digests) -> None:
        """The digests of the tokens from `start` on."""
        if self:
            self._digests[self._places(name, slot, start, start + len(digests))] = digests

    def _places(self, name: str, slot: Slot, start: int, end: int) -> npt.NDArray[np.int64]:
        positions = np.arange(start, end)
        blocks = self._tables[slot][positions // self._size]
        if np.any(blocks == _NO_BLOCK):
            raise InvariantBroken(f"{name}: no window block for the tokens [{start}, {end})")
        places: npt.NDArray[np.int64] = blocks * self._size + positions % self._size
        return places
