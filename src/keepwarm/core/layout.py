"""What one token's KV is made of, as far as anyone but the engine needs to know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """Layers whose KV lives and dies together.

    kind "full": every token's KV is needed while the sequence lives.
    kind "window": only the last `window_tokens` are read, the token's own included.
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
        """Of all layers."""
        return self.block_size * sum(group.bytes_per_token for group in self.groups)

    @property
    def window_tokens(self) -> int | None:
        """The longest window, where layers with one stand beside others without; else None, and every
        layer keeps every token."""
        kinds = {group.kind for group in self.groups}
        if not {"full", "window"} <= kinds:
            return None
        return max(group.window_tokens or 0 for group in self.groups)

    @property
    def window_bytes_per_block(self) -> int:
        """Of the layers with a window."""
        return self.block_size * sum(group.bytes_per_token for group in self.groups if group.kind == "window")

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens`, the last one perhaps part full."""
        return -(-num_tokens // self.block_size)


def window_blocks(window_tokens: int, block_size: int) -> int:
    """Full blocks that a block's first token reads from, where a token reads `window_tokens`."""
    return -(-(window_tokens - 1) // block_size)


_MOST_STEPS_HELD = 3
"""Steps whose tokens a sequence may hold behind its window: two in flight, and one that it ended in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowNeeds:
    """Blocks with which sequences never lack one for a layer with a window, however steps are cut."""

    a_sequence: int
    """Its window, the block before it, and two that are full in part."""
    in_steps: int
    """Of all sequences together: what the steps in flight compute."""

    @property
    def least(self) -> int:
        """For a single sequence."""
        return self.in_steps + self.a_sequence

    def most_sequences(self, num_window_blocks: int) -> int:
        return max(0, num_window_blocks - self.in_steps) // self.a_sequence


def window_needs(window_tokens: int, block_size: int, *, max_num_batched_tokens: int) -> WindowNeeds:
    return WindowNeeds(
        a_sequence=window_blocks(window_tokens, block_size) + 3,
        in_steps=-(-_MOST_STEPS_HELD * max_num_batched_tokens // block_size),
    )
