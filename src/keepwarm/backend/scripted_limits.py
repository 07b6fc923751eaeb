"""What the scripted engine can hold: bytes for tokens, and a made-up weight for each."""

from __future__ import annotations

from keepwarm.backend.settings import BackendSettings
from keepwarm.core.errors import TooLittleMemory
from keepwarm.core.layout import CacheLayout, LayerGroup
from keepwarm.core.step import ExecutorLimits

NUM_BYTE_TOKENS = 256
"""Tokens are the bytes of the text."""
_DEFAULT_CONTEXT_TOKENS = 8192
_BYTES_PER_TOKEN = 4096
_DEFAULT_CACHE_BYTES = 256 << 20


def scripted_limits(settings: BackendSettings) -> ExecutorLimits:
    """Raises `TooLittleMemory` when not even one context fits."""
    group = LayerGroup(kind="full", num_layers=1, window_tokens=None, bytes_per_token=_BYTES_PER_TOKEN)
    layout = CacheLayout(block_size=settings.block_size, groups=(group,))
    max_model_len = settings.max_model_len or _DEFAULT_CONTEXT_TOKENS
    cache_bytes = _DEFAULT_CACHE_BYTES
    if settings.device_cache_gb is not None:
        cache_bytes = int(settings.device_cache_gb * 1e9)
    num_blocks = cache_bytes // layout.bytes_per_block
    if num_blocks < layout.blocks_for(max_model_len):
        needed_gb = layout.blocks_for(max_model_len) * layout.bytes_per_block / 1e9
        raise TooLittleMemory(
            f"one context of {max_model_len} tokens needs {needed_gb:.3f} GB of KV and "
            f"--device-cache-gb gives {cache_bytes / 1e9:.3f}; raise it or lower --max-model-len"
        )
    return ExecutorLimits(
        layout=layout,
        num_blocks=num_blocks,
        max_num_seqs=settings.max_num_seqs,
        max_model_len=max_model_len,
        vocab_size=NUM_BYTE_TOKENS,
    )
