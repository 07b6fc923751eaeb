"""What the scripted engine can hold: a made-up weight for each token, and any context that is asked for."""

from __future__ import annotations

from keepwarm.backend.settings import BackendSettings
from keepwarm.core.errors import TooLittleMemory
from keepwarm.core.layout import CacheLayout, LayerGroup
from keepwarm.core.step import ExecutorLimits

NUM_BYTE_TOKENS = 256
"""Tokens are the bytes of the text."""
DEFAULT_CONTEXT_TOKENS = 8192
_BYTES_PER_TOKEN = 4096
_LEAST_DEFAULT_CACHE_BYTES = 256 << 20
_DEFAULT_CACHE_CONTEXTS = 4


def scripted_limits(
    settings: BackendSettings,
    *,
    vocab_size: int = NUM_BYTE_TOKENS,
    default_context_tokens: int = DEFAULT_CONTEXT_TOKENS,
) -> ExecutorLimits:
    """Raises `TooLittleMemory` when not even one context fits."""
    group = LayerGroup(kind="full", num_layers=1, window_tokens=None, bytes_per_token=_BYTES_PER_TOKEN)
    layout = CacheLayout(block_size=settings.block_size, groups=(group,))
    max_model_len = settings.max_model_len or default_context_tokens
    context_bytes = layout.blocks_for(max_model_len) * layout.bytes_per_block
    cache_bytes = max(_LEAST_DEFAULT_CACHE_BYTES, _DEFAULT_CACHE_CONTEXTS * context_bytes)
    if settings.device_cache_gb is not None:
        cache_bytes = int(settings.device_cache_gb * 1e9)
    num_blocks = cache_bytes // layout.bytes_per_block
    if num_blocks < layout.blocks_for(max_model_len):
        raise TooLittleMemory(
            f"one context of {max_model_len} tokens needs {context_bytes / 1e9:.3f} GB of KV and "
            f"--device-cache-gb gives {cache_bytes / 1e9:.3f}; raise it or lower --max-model-len"
        )
    return ExecutorLimits(
        layout=layout,
        num_blocks=num_blocks,
        max_num_seqs=settings.max_num_seqs,
        max_model_len=max_model_len,
        vocab_size=vocab_size,
    )
