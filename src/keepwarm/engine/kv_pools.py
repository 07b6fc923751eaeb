"""The KV of every layer, in blocks. Knows places, not sequences.

A layer's keys, and its values, are one tensor of (num_blocks * block_size, G, D): the rows of one block, and
of blocks whose ids follow each other, lie together. Layers of one shape that follow each other are cut from
one allocation, so that a block of all of them is a single strided view. Memory is taken page by page as it
is first written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from keepwarm.engine.attention import Gather


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """What one layer keeps a token, and how far back it looks."""

    num_key_heads: int
    head_dim: int
    window_tokens: int | None

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        return 2 * self.num_key_heads * self.head_dim * dtype.itemsize


class LayerPool:
    """One layer's keys and values, as they are written (rows, G, D) and as they are read (G, 1, rows, D)."""

    def __init__(self, key_rows: torch.Tensor, value_rows: torch.Tensor) -> None:
        self.key_rows, self.value_rows = key_rows, value_rows
        self.keys, self.values = _as_read(self.key_rows), _as_read(self.value_rows)


class KvPools:
    """Keys and values of all layers, and scratch space for blocks that do not lie together."""

    def __init__(
        self,
        *,
        shapes: Sequence[LayerShape],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        num_window_blocks: int = 0,
    ) -> None:
        """Layers with a window have `num_window_blocks`; 0: as many as the others."""
        self._block_size = block_size
        self._layers: list[LayerPool] = []
        parts = []

        def blocks_and_row(shape: LayerShape) -> tuple[int, int, int]:
            is_apart = num_window_blocks and shape.window_tokens is not None
            return num_window_blocks if is_apart else num_blocks, shape.num_key_heads, shape.head_dim

        for (blocks, *row), layers in groupby(shapes, key=blocks_and_row):
            rows = torch.empty(2 * len(list(layers)), blocks * block_size, *row, dtype=dtype)
            self._layers += [LayerPool(rows[i], rows[i + 1]) for i in range(0, len(rows), 2)]
            parts.append(rows.view(len(rows), blocks, -1).view(torch.uint8))
        self.block_parts: Sequence[torch.Tensor] = parts
        """What makes up a block, in the order in which a slot of host memory holds it: of every layer its
        keys, then its values. Each (num_parts, num_blocks, bytes of a part) uint8, a view."""
        self._key_scratch = self._value_scratch = torch.empty(0, 0, 0, dtype=dtype)

    @property
    def num_layers(self) -> int:
        return len(self._layers)

    def layer(self, index: int) -> LayerPool:
        return self._layers[index]

    def gather_keys(self, pool: LayerPool, where: Gather) -> torch.Tensor:
        """Keys of scattered blocks, (G, 1, where.num_rows, D), valid until the next call."""
        self._key_scratch = self._grown(self._key_scratch, pool.key_rows, where)
        return self._gather(pool.key_rows, self._key_scratch, where)

    def gather_values(self, pool: LayerPool, where: Gather) -> torch.Tensor:
        """Values of scattered blocks, as `gather_keys`."""
        self._value_scratch = self._grown(self._value_scratch, pool.value_rows, where)
        return self._gather(pool.value_rows, self._value_scratch, where)

    def _grown(self, scratch: torch.Tensor, rows: torch.Tensor, where: Gather) -> torch.Tensor:
        needed = len(where.blocks) * self._block_size
        if scratch.shape[0] >= needed and scratch.shape[1:] == rows.shape[1:]:
            return scratch
        return rows.new_empty(2 * needed, *rows.shape[1:])

    def _gather(self, rows: torch.Tensor, scratch: torch.Tensor, where: Gather) -> torch.Tensor:
        num_blocks = len(where.blocks)
        blocks = rows.view(-1, self._block_size * rows.shape[1] * rows.shape[2])
        copied = scratch[: num_blocks * self._block_size]
        torch.index_select(blocks, 0, where.blocks, out=copied.view(num_blocks, -1))
        return _as_read(copied[where.skip : where.skip + where.num_rows])


def _as_read(rows: torch.Tensor) -> torch.Tensor:
    return rows.transpose(0, 1).unsqueeze(1)
