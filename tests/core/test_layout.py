"""Sizes of blocks."""

from __future__ import annotations

from keepwarm.core.layout import CacheLayout, LayerGroup


def test_a_block_holds_its_tokens_of_every_group() -> None:
    full = LayerGroup(kind="full", num_layers=3, window_tokens=None, bytes_per_token=100)
    window = LayerGroup(kind="window", num_layers=15, window_tokens=512, bytes_per_token=10)
    layout = CacheLayout(block_size=16, groups=(full, window))
    assert layout.bytes_per_block == 16 * 110
    assert [layout.blocks_for(n) for n in (0, 1, 16, 17)] == [0, 1, 1, 2]
