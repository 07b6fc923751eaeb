"""How many blocks of KV a machine's memory allows. Arithmetic, and one look at what is free."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from keepwarm.core.errors import TooLittleMemory
from keepwarm.core.layout import CacheLayout, window_needs
from keepwarm.engine.settings import EngineSettings

CPU_SHARE: Final = 0.4
"""Of free memory for KV: the rest is for the other processes, activations and the page cache."""

BLOCKS_PER_WINDOW_BLOCK: Final = 8
"""Blocks of the layers that keep every token, for each one of the layers with a window, beside what
steps need. Half of the latter are snapshots on the way, half of them are windows that are read and those
at the ends of turns: enough for sequences of 16 windows each."""

LEAST_CONTEXT_WINDOWS: Final = 8
"""A context of fewer windows than this is kept whole in every layer: there is little to save."""

_CGROUP: Final = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSize:
    num_blocks: int
    num_window_blocks: int
    """Of the layers with a window, numbered apart; 0: they are part of the other blocks."""
    budget_bytes: int
    """What the setting or the machine allowed; `num_blocks` may need less."""


def cache_size(
    settings: EngineSettings, layout: CacheLayout, *, max_model_len: int, free_bytes: int
) -> CacheSize:
    """Blocks of one rank. Raises `TooLittleMemory` when not even one sequence of `max_model_len` fits.

    A budget the operator named is used in full. A share of free memory is capped at what
    `max_num_seqs` sequences of `max_model_len` can hold: more could keep only ended turns.
    """
    share = CPU_SHARE if settings.gpu_memory_utilization is None else settings.gpu_memory_utilization
    budget_bytes = int(free_bytes * share / settings.num_ranks)
    if settings.device_cache_gb is not None:
        budget_bytes = int(settings.device_cache_gb * 1e9)
    split = _Split.of(settings, layout, max_model_len)
    num_blocks = split.blocks_within(budget_bytes)
    needed_blocks = layout.blocks_for(max_model_len)
    if num_blocks < needed_blocks:
        needed_gb = split.bytes_of(needed_blocks) / 1e9
        fitting_tokens = num_blocks * layout.block_size
        raise TooLittleMemory(
            f"one sequence of {max_model_len} tokens needs {needed_gb:.3f} GB of KV, and the budget is "
            f"{budget_bytes / 1e9:.3f} GB ({free_bytes / 1e9:.2f} GB are free after loading the model): "
            f"lower --max-model-len to {fitting_tokens} or raise --device-cache-gb"
            + (" (or --gpu-memory-utilization)" if settings.device_cache_gb is None else "")
        )
    if budget_bytes > free_bytes:
        raise TooLittleMemory(
            f"--device-cache-gb {settings.device_cache_gb} is more than the {free_bytes / 1e9:.2f} GB "
            "that are free after loading the model; lower --device-cache-gb"
        )
    if settings.device_cache_gb is None:
        num_blocks = min(num_blocks, settings.max_num_seqs * needed_blocks)
    return CacheSize(
        num_blocks=num_blocks,
        num_window_blocks=split.window_blocks_beside(num_blocks),
        budget_bytes=budget_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    """How bytes are shared between blocks and those of layers with a window."""

    block_bytes: int
    window_block_bytes: int
    """0: these layers' KV is part of the other blocks."""
    least_window_blocks: int

    @classmethod
    def of(cls, settings: EngineSettings, layout: CacheLayout, max_model_len: int) -> _Split:
        window_tokens, window_bytes = layout.window_tokens, layout.window_bytes_per_block
        if window_tokens is None or max_model_len < LEAST_CONTEXT_WINDOWS * window_tokens:
            return cls(block_bytes=layout.bytes_per_block, window_block_bytes=0, least_window_blocks=0)
        needs = window_needs(
            window_tokens, layout.block_size, max_num_batched_tokens=settings.max_num_batched_tokens
        )
        return cls(
            block_bytes=layout.bytes_per_block - window_bytes,
            window_block_bytes=window_bytes,
            least_window_blocks=needs.least,
        )

    def window_blocks_beside(self, num_blocks: int) -> int:
        if not self.window_block_bytes:
            return 0
        return self.least_window_blocks + -(-num_blocks // BLOCKS_PER_WINDOW_BLOCK)

    def bytes_of(self, num_blocks: int) -> int:
        return num_blocks * self.block_bytes + self.window_blocks_beside(num_blocks) * self.window_block_bytes

    def blocks_within(self, budget_bytes: int) -> int:
        """The most whose bytes, with the window blocks beside them, are within the budget."""
        left_bytes = budget_bytes - self.least_window_blocks * self.window_block_bytes
        group_bytes = BLOCKS_PER_WINDOW_BLOCK * self.block_bytes + self.window_block_bytes
        num_groups, rest_bytes = divmod(max(0, left_bytes), group_bytes)
        rest = max(0, rest_bytes - self.window_block_bytes) // self.block_bytes
        return num_groups * BLOCKS_PER_WINDOW_BLOCK + min(rest, BLOCKS_PER_WINDOW_BLOCK - 1)


def free_memory_bytes() -> int:
    """What this process may still take: the machine's free memory, or its container's, if that is less."""
    free = psutil.virtual_memory().available
    limit, used = _cgroup_bytes("memory.max"), _cgroup_bytes("memory.current")
    if limit is not None and used is not None:
        free = min(free, max(0, limit - used + _cgroup_cache_bytes()))
    return int(free)


def usable_cores() -> int:
    """Cores this process may use: its affinity, or its container's quota, if that is less."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = (_CGROUP / "cpu.max").read_text().split()[:2]
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


def _cgroup_bytes(name: str) -> int | None:
    try:
        text = (_CGROUP / name).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _cgroup_cache_bytes() -> int:
    """Page cache that the kernel gives back before it refuses memory."""
    try:
        lines = (_CGROUP / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    return sum(
        int(value) for name, _, value in (line.partition(" ") for line in lines) if name == "inactive_file"
    )
