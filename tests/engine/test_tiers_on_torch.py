"""The scheduler's two tiers over real KV: conversations that take turns in too little device memory, on
two ranks with one host memory, answer as one that is read cold, to the token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from keepwarm.engine.settings import EngineSettings
from keepwarm.sched.settings import Demote
from tests.sched.driver import BLOCK_SIZE, Rank
from tests.sched.tiers import Host

pytest.importorskip("torch")

from keepwarm.engine.torch_executor import TorchExecutor, build_torch_executor
from tests.engine.test_torch_executor import prompt

pytestmark = pytest.mark.engine

CONTEXT_TOKENS = 96
NUM_BLOCKS = 30
"""Of device memory: for one conversation, not for three."""
NUM_CONVERSATIONS = 3
TinyModel = Callable[[str], Path]


def build(folder: Path, device_cache_gb: float) -> TorchExecutor:
    settings = EngineSettings(
        model_path=str(folder),
        block_size=BLOCK_SIZE,
        max_num_seqs=4,
        max_model_len=CONTEXT_TOKENS,
        device_cache_gb=device_cache_gb,
        num_threads=1,
    )
    return cast(TorchExecutor, build_torch_executor(settings)[0])


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("demote", ["turn_end", "eviction"])
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_conversations_that_move_between_tiers_and_ranks_answer_as_cold_ones(
    tiny_model: TinyModel, name: str, demote: Demote, depth: int
) -> None:
    block_bytes = build(tiny_model(name), 0.02).limits.layout.bytes_per_block
    executors = [build(tiny_model(name), (NUM_BLOCKS + 0.5) * block_bytes / 1e9) for _ in range(2)]
    host = Host(limits=executors[0].limits)
    ranks: list[Rank] = []
    for executor in executors:
        ranks.append(host.rank(demote=demote, promote="always", depth=depth, chunk_blocks=5))
        executor.attach_arena(host.arena)
        ranks[-1].executor = cast(Any, executor)
    conversations = [prompt(50, seed) for seed in range(NUM_CONVERSATIONS)]
    for turn in range(4):
        for index, conversation in enumerate(conversations):
            rank = ranks[(turn + index) % 2]
            cold = rank.ask(f"cold {turn} {index}", conversation, max_output_tokens=4, use_cache=False)
            warm = f"warm {turn} {index}"
            assert rank.ask(warm, conversation, max_output_tokens=4) == cold
            if turn and demote == "turn_end":  # else another rank's device may be the only one to have it
                assert rank.cached[warm] >= (len(conversation) - 6) // BLOCK_SIZE * BLOCK_SIZE
            conversation += [*cold, *prompt(3, turn)]
    assert sum(sum(tokens > 0 for tokens in rank.from_host.values()) for rank in ranks) >= 4
    assert {rank.scheduler.stats().host_tier for rank in ranks} == {"on"}
    host.check_at_rest()
    for executor in executors:
        executor.close()
