"""A rank in this process over host memory, with little device memory."""

from __future__ import annotations

from keepwarm.backend.in_process_rank import InProcessRank
from keepwarm.backend.rank_engine import RankEngine
from keepwarm.backend.scripted_limits import scripted_limits
from keepwarm.cache.host_index import HostIndex, Owner
from keepwarm.core.hashing import BlockHasher
from keepwarm.core.rank_messages import Ready
from keepwarm.engine.scripted import ScriptedExecutor
from keepwarm.sched.scheduler import Scheduler, SchedulerSettings
from tests.backend.ports import KEY, scripted_settings
from tests.engine.arenas import make_arena


def tiered_rank(*, num_slots: int = 512) -> InProcessRank:
    """One context of 2,048 tokens fits into device memory, and no more."""
    settings = scripted_settings(max_model_len=2048, max_num_seqs=2, device_cache_gb=0.0085)
    limits = scripted_limits(settings)
    executor = ScriptedExecutor(limits=limits)
    executor.attach_arena(make_arena(limits.layout, num_slots=num_slots))
    scheduler = Scheduler(
        limits=limits,
        hasher=BlockHasher(key=KEY, block_size=limits.layout.block_size),
        settings=SchedulerSettings(max_num_batched_tokens=settings.max_num_batched_tokens),
        host=HostIndex(num_slots).for_owner(Owner(1)),
    )
    ready = Ready(
        num_blocks=limits.num_blocks,
        block_size=limits.layout.block_size,
        bytes_per_block=limits.layout.bytes_per_block,
        max_num_seqs=limits.max_num_seqs,
        max_model_len=limits.max_model_len,
        vocab_size=limits.vocab_size,
        description="scripted, over host memory",
    )
    return InProcessRank(RankEngine(scheduler=scheduler, executor=executor), ready)
