"""What a backend process is told at start. One place for each option's default, unit and meaning."""

from __future__ import annotations

from typing import Literal

import msgspec

from keepwarm.core.errors import BadSetting


class BackendSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One replica. Paths are absolute. None means "decide at start and print it"."""

    model_path: str
    """A GGUF file, or a Hugging Face folder (config.json, tokenizer.json, *.safetensors)."""
    model_name: str
    """The name clients use."""
    socket_path: str
    """The Unix socket the front listens on."""
    data_dir: str
    """Where the cache key lies; created when missing."""
    max_model_len: int | None = None
    """Tokens of prompt and output together; None: what the model was made for."""
    max_num_seqs: int = 32
    """Turns that are computed together."""
    max_num_batched_tokens: int = 512
    """Tokens one step reads at most: the chunk of a long prompt, decode tokens included."""
    block_size: int = 16
    """Tokens a block."""
    device_cache_gb: float | None = None
    """GB (10^9 bytes) for each rank's KV; None: `gpu_memory_utilization` of what is free after loading."""
    gpu_memory_utilization: float | None = None
    """Share of free device memory for KV, of all ranks where they share it; None: 0.9 on a GPU, 0.4 on
    a CPU."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """auto: float32 on a CPU, the checkpoint's on a GPU."""
    num_threads: int | None = None
    """CPU threads of all ranks together; None: all cores this process may use."""
    ranks: int = 1
    """Engine processes, each with device memory of its own; a turn goes to one of them."""
    prefix_cache: bool = True
    """False: every turn is read from its first token."""
    host_cache_socket: str | None = None
    """Where `keepwarm hostcache` listens; None: nothing is kept in host memory."""
    conversation_memory_mb: float = 1024.0
    """MB (10^6 bytes) of host memory for conversations that need not be gone through again when they
    grow; 0: each turn is rendered whole."""
    tool_format: str = "auto"
    """The markup that tool calls are read in; auto: by the chat template, none: calls stay text."""
    date_shown_s: float | None = None
    """Unix time whose date is shown by templates that show one; None: this start's. One that changed
    at a restart would turn every conversation's prefix."""
    engine: Literal["torch", "scripted"] = "torch"
    """scripted: no weights; the answers are those of `script_path`, or made-up tokens without one."""
    script_path: str | None = None
    """What the scripted engine says, in the words of the model at `model_path`."""
    script_step_ms: float = 0.0
    """Milliseconds a step of the scripted engine takes; 0: as few as it can."""
    engine_silence_limit_s: float = 120.0
    """A rank that says nothing for this long, heartbeats included, is taken for hung and killed."""
    engine_start_limit_s: float = 3600.0
    """A rank that has not loaded its model after this long is killed, and the start has failed."""


def decode_settings(raw: bytes) -> BackendSettings:
    """Settings from JSON. Raises `BadSetting` naming the key and the value."""
    try:
        return msgspec.json.decode(raw, type=BackendSettings)
    except msgspec.DecodeError as error:
        raise BadSetting(f"backend settings: {error}") from error
