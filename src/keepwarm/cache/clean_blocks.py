"""Which blocks of device memory need not be copied down: host memory has them, or had them once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from keepwarm.core.ids import BlockIds


class CleanBlocks:
    """A set of block ids, asked about whole prefixes at a time."""

    def __init__(self, num_blocks: int) -> None:
        self._is_clean = np.zeros(num_blocks, dtype=np.bool_)

    def add(self, blocks: BlockIds) -> None:
        self._is_clean[blocks] = True

    def remove(self, blocks: BlockIds) -> None:
        """They hold something else from now on."""
        self._is_clean[blocks] = False

    def mask(self) -> npt.NDArray[np.bool_]:
        """Which blocks are in the set, (num_blocks,); a copy."""
        return self._is_clean.copy()

    def first_dirty(self, blocks: BlockIds) -> int:
        """The index of the first of `blocks` that is not clean; their number where all are."""
        dirty = ~self._is_clean[blocks]
        return int(np.argmax(dirty)) if np.any(dirty) else len(blocks)

    def dirty(self, blocks: BlockIds) -> BlockIds:
        """Those of `blocks` that are not clean, in order."""
        return blocks[~self._is_clean[blocks]]
