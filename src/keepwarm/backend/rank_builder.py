"""Puts a rank together from settings: executor, scheduler, and what the front is told of them.

torch is imported only when the settings ask for it.
"""

from __future__ import annotations

from keepwarm.backend.host_attachment import attach_host
from keepwarm.backend.host_client import HostClient
from keepwarm.backend.rank_engine import RankEngine
from keepwarm.backend.script import read_script
from keepwarm.backend.scripted_limits import DEFAULT_CONTEXT_TOKENS, scripted_limits
from keepwarm.backend.settings import BackendSettings
from keepwarm.core.hashing import BlockHasher
from keepwarm.core.rank_messages import Ready
from keepwarm.core.step import Executor
from keepwarm.engine.scripted import ScriptedExecutor
from keepwarm.sched.scheduler import Scheduler, SchedulerSettings


def build_rank(settings: BackendSettings, *, hash_key: bytes, rank: int = 0) -> tuple[RankEngine, Ready]:
    """Load. `rank`: which of the replica's it is. Raises `BadModel`, `TooLittleMemory` and `BadSetting`."""
    executor, description = _build_executor(settings)
    limits = executor.limits
    host = attach_host(settings, executor, hash_key=hash_key, rank=rank)
    scheduler = Scheduler(
        limits=limits,
        hasher=BlockHasher(key=hash_key, block_size=limits.layout.block_size),
        settings=SchedulerSettings(
            max_num_batched_tokens=settings.max_num_batched_tokens, prefix_cache=settings.prefix_cache
        ),
        host=host,
    )
    ready = Ready(
        num_blocks=limits.num_blocks,
        block_size=limits.layout.block_size,
        bytes_per_block=limits.layout.bytes_per_block,
        max_num_seqs=limits.max_num_seqs,
        max_model_len=limits.max_model_len,
        vocab_size=limits.vocab_size,
        description=description,
    )
    close_host = host.close if isinstance(host, HostClient) else None
    return RankEngine(scheduler=scheduler, executor=executor, close_host=close_host), ready


def _build_executor(settings: BackendSettings) -> tuple[Executor, str]:
    if settings.engine == "scripted":
        return _build_scripted_executor(settings)
    from keepwarm.backend.vocabulary import load_vocabulary
    from keepwarm.engine.settings import EngineSettings
    from keepwarm.engine.torch_executor import build_torch_executor

    return build_torch_executor(
        EngineSettings(
            model_path=settings.model_path,
            max_model_len=settings.max_model_len,
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            block_size=settings.block_size,
            device_cache_gb=settings.device_cache_gb,
            gpu_memory_utilization=settings.gpu_memory_utilization,
            dtype=settings.dtype,
            num_threads=settings.num_threads,
            num_ranks=settings.ranks,
        ),
        load_vocabulary=lambda: load_vocabulary(settings.model_path),
    )


def _build_scripted_executor(settings: BackendSettings) -> tuple[Executor, str]:
    step_s = settings.script_step_ms / 1000
    if settings.script_path is None:
        limits = scripted_limits(settings)
        return ScriptedExecutor(limits=limits, step_s=step_s, verify=False), "scripted: no model"
    from keepwarm.backend.scripted_answers import ScriptedAnswers
    from keepwarm.chat.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(settings.model_path)
    script = read_script(settings.script_path)
    limits = scripted_limits(
        settings,
        vocab_size=tokenizer.vocab_size,
        default_context_tokens=tokenizer.max_position or DEFAULT_CONTEXT_TOKENS,
    )
    answers = ScriptedAnswers(script, tokenizer)
    executor = ScriptedExecutor(limits=limits, step_s=step_s, verify=False, answer_to=answers.answer_to)
    return executor, f"scripted: {len(script.answers)} answers"
