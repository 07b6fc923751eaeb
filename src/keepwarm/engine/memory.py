"""How many blocks of KV a machine's memory allows. Arithmetic, and one look at what is free."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from keepwarm.core.errors import TooLittleMemory
from keepwarm.core.layout import CacheLayout
from keepwarm.engine.settings import EngineSettings

CPU_SHARE: Final = 0.4
"""Of free memory for KV: the rest is for the other processes, activations and the page cache."""

_CGROUP: Final = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSize:
    num_blocks: int
    budget_bytes: int
    """What the setting or the machine allowed; `num_blocks` may need less."""


def cache_size(
    settings: EngineSettings, layout: CacheLayout, *, max_model_len: int, free_bytes: int
) -> CacheSize:
    """Blocks of one rank. Raises `TooLittleMemory` when not even one sequence of `max_model_len` fits.

    A budget the operator named is used in full. A share of free memory is capped at what
    `max_num_seqs` sequences of `max_model_len` can hold: more could keep only ended turns.
    """
    needed_blocks = layout.blocks_for(max_model_len)
    if settings.device_cache_gb is not None:
        budget_bytes = int(settings.device_cache_gb * 1e9)
        num_blocks = budget_bytes // layout.bytes_per_block
    else:
        share = CPU_SHARE if settings.gpu_memory_utilization is None else settings.gpu_memory_utilization
        budget_bytes = int(free_bytes * share / settings.num_ranks)
        num_blocks = min(budget_bytes // layout.bytes_per_block, settings.max_num_seqs * needed_blocks)
    if num_blocks < needed_blocks:
        raise TooLittleMemory(_too_little(settings, layout, max_model_len, budget_bytes, free_bytes))
    if num_blocks * layout.bytes_per_block > free_bytes:
        raise TooLittleMemory(
            f"--device-cache-gb {settings.device_cache_gb} is more than the {free_bytes / 1e9:.2f} GB "
            "that are free after loading the model; lower --device-cache-gb"
        )
    return CacheSize(num_blocks=num_blocks, budget_bytes=budget_bytes)


def _too_little(
    settings: EngineSettings, layout: CacheLayout, max_model_len: int, budget_bytes: int, free_bytes: int
) -> str:
    needed_gb = layout.blocks_for(max_model_len) * layout.bytes_per_block / 1e9
    fitting_tokens = budget_bytes // layout.bytes_per_block * layout.block_size
    return (
        f"one sequence of {max_model_len} tokens needs {needed_gb:.3f} GB of KV, and the budget is "
        f"{budget_bytes / 1e9:.3f} GB ({free_bytes / 1e9:.2f} GB are free after loading the model): "
        f"lower --max-model-len to {fitting_tokens} or raise --device-cache-gb"
        + (" (or --gpu-memory-utilization)" if settings.device_cache_gb is None else "")
    )


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
