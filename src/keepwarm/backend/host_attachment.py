"""A rank takes part in the replica's host memory, or goes without and can say why."""

from __future__ import annotations

import logging

from blake3 import blake3

from keepwarm.backend.cache_key import model_identity
from keepwarm.backend.host_client import HostClient, attach
from keepwarm.backend.settings import BackendSettings
from keepwarm.core.host_tier import HostGeometry, HostTierLost
from keepwarm.core.layout import CacheLayout
from keepwarm.core.step import Executor

logger = logging.getLogger(__name__)


def attach_host(
    settings: BackendSettings, executor: Executor, *, hash_key: bytes, rank: int
) -> HostClient | HostTierLost | None:
    """`HostTierLost`: why there is none, where there should be; serving goes on without.

    Raises `BadSetting` where its owner or the executor refuses these blocks. Whoever gets a client
    closes it after the executor.
    """
    if settings.host_cache_socket is None:
        return None
    if executor.limits.num_window_blocks:
        lost = HostTierLost(
            f"this model's layers with a window of {executor.limits.layout.window_tokens} tokens keep only "
            "that, in blocks that are not copied to host memory: --host-cache-gb has no effect"
        )
        logger.warning("rank %d goes without host memory: %s", rank, lost)
        return lost
    geometry = _geometry(settings, executor.limits.layout, hash_key)
    try:
        client = attach(settings.host_cache_socket, rank=rank, geometry=geometry)
    except HostTierLost as lost:
        logger.error("rank %d goes without host memory: %s", rank, lost)
        return lost
    try:
        executor.attach_arena(client.arena)
    except BaseException:
        client.close()
        raise
    return client


def _geometry(settings: BackendSettings, layout: CacheLayout, hash_key: bytes) -> HostGeometry:
    model = model_identity(settings.model_path, settings.dtype) + settings.engine.encode()
    return HostGeometry(
        identity=blake3(model, key=hash_key).digest(16),
        block_size=layout.block_size,
        slot_bytes=layout.bytes_per_block,
    )
