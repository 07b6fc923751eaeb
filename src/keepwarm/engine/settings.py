"""What the torch engine is told at start. Knows no process, no socket and no words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DtypeName = Literal["auto", "float32", "bfloat16", "float16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """One rank's engine. None means "decide at start and print it"."""

    model_path: str
    """A GGUF file, or a Hugging Face folder (config.json, *.safetensors)."""
    max_model_len: int | None = None
    """Tokens of prompt and output together; None: what the model was made for."""
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 512
    """The most tokens one plan may compute."""
    block_size: int = 16
    """Tokens a block."""
    device_cache_gb: float | None = None
    """GB (10^9 bytes) for this rank's KV; None: `gpu_memory_utilization` of what is free after loading."""
    gpu_memory_utilization: float | None = None
    """Share of free memory for the KV of all ranks; None: 0.4 on a CPU."""
    dtype: DtypeName = "auto"
    """auto: float32 on a CPU."""
    num_threads: int | None = None
    """CPU threads of all ranks together; None: all cores this process may use."""
    num_ranks: int = 1
    """Ranks of this replica, which share a machine's cores and its memory."""
