"""What one token's KV is made of, as far as anyone but the engine needs to know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """Layers whose KV lives and dies together.

    kind "full": every token's KV is needed while the sequence lives.
    kind "window": only the last `window_tokens` are read (keeping more is allowed).
    kind "state": no KV a token, one state a sequence.
    """

    kind: Literal["full", "window", "state"]
    num_layers: int
    window_tokens: int | None
    bytes_per_token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLayout:
    """How the KV of one rank is cut: `block_size` tokens a block, the same for each group."""

    block_size: int
    groups: tuple[LayerGroup, ...]

    @property
    def bytes_per_block(self) -> int:
        return self.block_size * sum(group.bytes_per_token for group in self.groups)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens`, the last one perhaps part full."""
        return -(-num_tokens // self.block_size)
