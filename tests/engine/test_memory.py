"""Blocks out of budgets."""

from __future__ import annotations

from typing import Any

import pytest

from keepwarm.core.errors import TooLittleMemory
from keepwarm.core.layout import CacheLayout, LayerGroup
from keepwarm.engine.memory import cache_size, free_memory_bytes, usable_cores
from keepwarm.engine.settings import EngineSettings

GROUP = LayerGroup(kind="full", num_layers=10, window_tokens=None, bytes_per_token=1_000)
LAYOUT = CacheLayout(block_size=10, groups=(GROUP,))
"""10 KB a block, 100 blocks or 1 MB for 1,000 tokens."""


def blocks(*, free_gb: float = 10.0, **changes: Any) -> int:
    settings = EngineSettings(model_path="model", **changes)
    size = cache_size(settings, LAYOUT, max_model_len=1_000, free_bytes=int(free_gb * 1e9))
    return size.num_blocks


def test_a_named_budget_is_used_in_full() -> None:
    assert blocks(device_cache_gb=1.0, max_num_seqs=1) == 100_000


def test_a_share_is_of_what_is_free() -> None:
    assert blocks(free_gb=0.1, max_num_seqs=1_000) == 4_000
    assert blocks(free_gb=0.1, max_num_seqs=1_000, gpu_memory_utilization=0.9) == 9_000


def test_ranks_divide_a_share_and_each_has_a_named_budget() -> None:
    assert blocks(free_gb=0.1, max_num_seqs=1_000, num_ranks=2) == 2_000
    assert blocks(device_cache_gb=1.0, num_ranks=2) == 100_000


def test_a_share_is_capped_at_what_all_sequences_can_hold() -> None:
    assert blocks(max_num_seqs=32) == 3_200


def test_less_than_one_whole_sequence_says_what_is_needed_and_what_to_lower() -> None:
    with pytest.raises(TooLittleMemory) as caught:
        blocks(device_cache_gb=0.0005)
    assert "one sequence of 1000 tokens needs 0.001 GB of KV" in str(caught.value)
    assert "lower --max-model-len to 500 or raise --device-cache-gb" in str(caught.value)
    with pytest.raises(TooLittleMemory, match="or --gpu-memory-utilization"):
        blocks(free_gb=0.001)


def test_a_named_budget_beyond_the_machine_is_refused() -> None:
    with pytest.raises(TooLittleMemory, match=r"--device-cache-gb 11\.0 is more than the 10\.00 GB"):
        blocks(device_cache_gb=11.0)


def test_this_machine_has_some_memory_and_a_core() -> None:
    assert free_memory_bytes() > 0
    assert usable_cores() >= 1
