"""The KV of every layer, in blocks. Knows places, not sequences.

A layer's pool is one tensor of (num_blocks * block_size, G, D): the rows of one block, and of blocks
whose ids follow each other, lie together. Memory is taken page by page as it is first written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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


class KvPools:
    """Keys and values of all layers, and scratch space for blocks that do not lie together."""

    def __init__(
        self, *, shapes: Sequence[LayerShape], num_blocks: int, block_size: int, dtype: torch.dtype
    ) -> None:
        self._block_size = block_size
        self._layers = [
            (_pool(shape, num_blocks * block_size, dtype), _pool(shape, num_blocks * block_size, dtype))
            for shape in shapes
        ]
        self._scratch: list[torch.Tensor | None] = [None, None]

    @property
    def num_layers(self) -> int:
        return len(self._layers)

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of one layer, each (num_blocks * block_size, G, D)."""
        return self._layers[index]

    def gather(self, pool: torch.Tensor, which: int, where: Gather) -> torch.Tensor:
        """Rows of scattered blocks, (where.num_rows, G, D), valid until the next gather of `which`."""
        num_rows = len(where.blocks) * self._block_size
        scratch = self._scratch_for(pool, which, num_rows)
        blocks = pool.view(-1, self._block_size * pool.shape[1] * pool.shape[2])
        torch.index_select(blocks, 0, where.blocks, out=scratch.view(len(where.blocks), -1))
        return scratch[where.skip : where.skip + where.num_rows]

    def _scratch_for(self, pool: torch.Tensor, which: int, num_rows: int) -> torch.Tensor:
        scratch = self._scratch[which]
        if scratch is None or scratch.shape[0] < num_rows or scratch.shape[1:] != pool.shape[1:]:
            scratch = pool.new_empty(max(2 * num_rows, 1024), *pool.shape[1:])
            self._scratch[which] = scratch
        return scratch[:num_rows]


def _pool(shape: LayerShape, num_rows: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(num_rows, shape.num_key_heads, shape.head_dim, dtype=dtype)
