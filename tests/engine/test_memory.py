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


HYBRID = CacheLayout(
    block_size=10,
    groups=(
        LayerGroup(kind="full", num_layers=2, window_tokens=None, bytes_per_token=200),
        LayerGroup(kind="window", num_layers=8, window_tokens=50, bytes_per_token=800),
    ),
)
"""2 KB and 8 KB a block. A window is 5 blocks, a sequence holds 8, and the steps 3 × 6 in flight."""


def hybrid(*, max_model_len: int = 1_000, **changes: Any) -> tuple[int, int]:
    settings = EngineSettings(model_path="model", max_num_batched_tokens=60, **changes)
    size = cache_size(settings, HYBRID, max_model_len=max_model_len, free_bytes=int(1e9))
    spent = size.num_blocks * 2_000 + size.num_window_blocks * 8_000
    assert spent <= size.budget_bytes or not size.num_window_blocks
    return size.num_blocks, size.num_window_blocks


def test_layers_with_a_window_get_one_block_for_eight_of_the_others() -> None:
    assert hybrid(device_cache_gb=0.1) == (33_264, 26 + 4_158)  # 10,000 if they kept every token


def test_a_context_of_a_few_windows_is_kept_whole() -> None:
    assert hybrid(max_model_len=400, device_cache_gb=0.1)[1] > 0
    assert hybrid(max_model_len=399, device_cache_gb=0.1) == (10_000, 0)


def test_what_all_sequences_can_hold_bounds_windows_too() -> None:
    assert hybrid(max_num_seqs=2) == (200, 26 + 25)


def test_the_least_budget_of_a_hybrid_model_is_what_the_message_says() -> None:
    needed_gb = (100 * 2_000 + (26 + 13) * 8_000) / 1e9
    assert hybrid(device_cache_gb=needed_gb) == (100, 39)
    with pytest.raises(TooLittleMemory, match=f"needs {needed_gb:.3f} GB .* lower --max-model-len to 990"):
        hybrid(device_cache_gb=needed_gb - 1e-6)


def test_this_machine_has_some_memory_and_a_core() -> None:
    assert free_memory_bytes() > 0
    assert usable_cores() >= 1
