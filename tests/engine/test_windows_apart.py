"""Layers with a window keep only their windows: what is read from a cache is what a cold read says,
wherever a turn goes on, and what that saves. The shipped scheduler over the real engine."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from keepwarm.core.hashing import BlockHasher, join_hashes, root_hash
from keepwarm.core.ids import RequestId, TenantId, token_ids
from keepwarm.core.rank_messages import Admitted, Submit, Tokens
from keepwarm.core.sampling import GREEDY
from keepwarm.core.step import Executor
from keepwarm.engine.settings import EngineSettings
from keepwarm.sched.scheduler import Scheduler, SchedulerSettings

pytest.importorskip("torch")

import torch

from keepwarm.chat.tokenizer import load_tokenizer
from keepwarm.engine.checkpoint import inspect_checkpoint
from keepwarm.engine.model_loading import load_model
from keepwarm.engine.torch_executor import build_torch_executor
from tests.engine.test_torch_executor import prompt
from tests.engine.tiny_models import WINDOW_TOKENS, assert_same_tokens

pytestmark = pytest.mark.engine

KEY = bytes(32)
BATCHED_TOKENS = 24
TinyModel = Callable[[str], Path]


class Rank:
    """One scheduler over one engine, a turn at a time or several together."""

    def __init__(self, executor: Executor, *, max_num_batched_tokens: int = BATCHED_TOKENS) -> None:
        self.executor = executor
        self._block_size = executor.limits.layout.block_size
        self.scheduler = Scheduler(
            limits=executor.limits,
            hasher=BlockHasher(key=KEY, block_size=self._block_size),
            settings=SchedulerSettings(
                max_num_batched_tokens=max_num_batched_tokens, output_reserve_tokens=8
            ),
        )
        self.cached: dict[str, int] = {}
        self.output: dict[str, list[int]] = {}

    def ask(
        self, name: str, tokens: Sequence[int], num_tokens: int = 6, *, use_cache: bool = True
    ) -> list[int]:
        root = root_hash(KEY, TenantId("tenant"))
        hasher = BlockHasher(key=KEY, block_size=self._block_size)
        self.scheduler.submit(
            Submit(
                request_id=RequestId(name),
                tokens=token_ids(tokens).tobytes(),
                block_hashes=join_hashes(hasher.extend(root, token_ids(tokens))),
                root=root,
                max_output_tokens=num_tokens,
                stop_tokens=(),
                sampling=GREEDY,
                use_cache=use_cache,
            )
        )
        while self.scheduler.has_work:
            self.executor.submit(self.scheduler.plan(0.0))
            self.scheduler.commit(self.executor.collect())
            for event in self.scheduler.take_events():
                match event:
                    case Admitted(request_id=turn, cached_tokens=cached):
                        self.cached[turn] = cached
                    case Tokens(request_id=turn, tokens=new):
                        self.output.setdefault(turn, []).extend(new)
        self.scheduler.check_integrity()
        return self.output[name]


def build(path: str, **changes: object) -> Rank:
    values: dict[str, object] = {
        "block_size": 4,
        "max_num_seqs": 4,
        "max_num_batched_tokens": BATCHED_TOKENS,
        "device_cache_gb": 0.002,
        "num_threads": 1,
    }
    executor, _ = build_torch_executor(EngineSettings(model_path=path, **(values | changes)))  # type: ignore[arg-type]
    assert executor.limits.num_window_blocks
    batched = (values | changes)["max_num_batched_tokens"]
    assert isinstance(batched, int)
    return Rank(executor, max_num_batched_tokens=batched)


AROUND_A_WINDOW = (*range(WINDOW_TOKENS - 2, WINDOW_TOKENS + 3), 2 * WINDOW_TOKENS - 1, 2 * WINDOW_TOKENS)
BLOCK_EDGES = (3, 4, 5, 19, 20, 21, 63, 64, 65)
LONG_BEYOND = (150, 255, 256, 257, 301)


def test_cached_equals_cold_at_every_place_where_a_turn_goes_on(tiny_model: TinyModel) -> None:
    rank = build(str(tiny_model("gemma3")))
    conversation = prompt(310, seed=11)
    rank.ask("whole", conversation)
    num_cached = 0
    for kept in sorted({*AROUND_A_WINDOW, *BLOCK_EDGES, *LONG_BEYOND}):
        tokens = [*conversation[:kept], *prompt(7, seed=kept)]
        cold = rank.ask(f"cold {kept}", tokens, use_cache=False)
        assert rank.ask(f"warm {kept}", tokens) == cold
        assert rank.ask(f"again {kept}", tokens) == cold
        assert rank.cached[f"again {kept}"] == (len(tokens) - 1) // 4 * 4
        num_cached += rank.cached[f"warm {kept}"] > 0
    assert num_cached > 10


@pytest.mark.parametrize(
    "num_before", [WINDOW_TOKENS - 1, WINDOW_TOKENS, WINDOW_TOKENS + 1, 100, 255, 256, 257]
)
def test_a_conversation_goes_on_where_its_last_turn_ended_and_says_what_a_cold_one_says(
    num_before: int, tiny_model: TinyModel
) -> None:
    plain = load_model(inspect_checkpoint(str(tiny_model("gemma3"))), torch.float32, attention="sdpa")
    rank = build(str(tiny_model("gemma3")))
    conversation = prompt(num_before, seed=num_before)
    for turn in range(4):
        num_known = len(conversation)
        answer = rank.ask(f"turn {turn}", conversation, 2 + 5 * turn)
        assert_same_tokens(plain, conversation, answer)
        assert rank.cached[f"turn {turn}"] == (0 if turn == 0 else (num_known - 4) // 4 * 4)
        conversation = [*conversation, *answer, *prompt(3, seed=turn)]


def test_turns_that_run_together_read_only_their_own_windows(tiny_model: TinyModel) -> None:
    rank = build(str(tiny_model("gemma3")))
    shared = prompt(60, seed=5)
    asked = {f"t{n}": [*shared[: 20 * n], *prompt(30, seed=n)] for n in range(4)}
    root = root_hash(KEY, TenantId("tenant"))
    hasher = BlockHasher(key=KEY, block_size=4)
    for name, tokens in asked.items():
        rank.scheduler.submit(
            Submit(
                request_id=RequestId(name),
                tokens=token_ids(tokens).tobytes(),
                block_hashes=join_hashes(hasher.extend(root, token_ids(tokens))),
                root=root,
                max_output_tokens=12,
                stop_tokens=(),
                sampling=GREEDY,
                use_cache=True,
            )
        )
    rank.ask("last", shared)
    for name, tokens in asked.items():
        assert rank.output[name] == rank.ask(f"cold {name}", tokens, 12, use_cache=False)


def test_a_context_that_its_layers_could_not_keep_whole_fits_and_what_a_token_costs_is_known(
    tiny_model: TinyModel,
) -> None:
    """The whole context of 512 tokens, in memory for fewer than half of its tokens in all layers."""
    budget_bytes = 690_000
    rank = build(str(tiny_model("gemma3_as_gguf")), device_cache_gb=budget_bytes / 1e9, max_num_seqs=1)
    limits = rank.executor.limits
    kept_whole_tokens = budget_bytes // limits.layout.bytes_per_block * limits.layout.block_size
    assert kept_whole_tokens < 230
    tokens = prompt(500, seed=3)
    warm = [rank.ask("first", tokens, 8), rank.ask("again", tokens, 8)]
    assert rank.cached["again"] == 496
    assert warm[0] == warm[1] == rank.ask("cold", tokens, 8, use_cache=False)


@pytest.fixture(scope="module")
def gemma(gemma_270m_path: str) -> Rank:
    rank = build(
        gemma_270m_path,
        block_size=16,
        max_num_seqs=2,
        max_num_batched_tokens=512,
        max_model_len=4096,
        device_cache_gb=0.15,
        num_threads=2,
    )
    gc.collect()
    return rank


@pytest.fixture(scope="module")
def long_prompt(gemma_270m_path: str) -> list[int]:
    text = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text()
    return [2, *load_tokenizer(gemma_270m_path).encode(text).tolist()][:1100]


@pytest.mark.slow
def test_gemma_270m_keeps_a_context_in_a_third_of_the_bytes(gemma: Rank) -> None:
    limits = gemma.executor.limits
    layout = limits.layout
    full_bytes = layout.bytes_per_block - layout.window_bytes_per_block
    assert (layout.bytes_per_block // 16, full_bytes // 16) == (
        36_864,
        6_144,
    )  # a token: all layers, full ones
    # What a long session costs a token: a full block, and an eighth of a window block.
    hybrid = (8 * full_bytes + layout.window_bytes_per_block) / 8 / 16
    assert layout.bytes_per_block / 16 / hybrid == pytest.approx(3.69, abs=0.01)
    # This very rank: 8,192 tokens within 0.15 GB, which would not hold 4,096 in all layers.
    spent = limits.num_blocks * full_bytes + limits.num_window_blocks * layout.window_bytes_per_block
    assert limits.num_blocks * 16 >= 2 * 4096
    assert spent <= 150_000_000 < 4096 * layout.bytes_per_block // 16


@pytest.mark.slow
@pytest.mark.parametrize("kept", [511, 512, 513, 528, 1025])
def test_gemma_270m_says_warm_what_it_says_cold(kept: int, gemma: Rank, long_prompt: list[int]) -> None:
    tokens = [*long_prompt[:kept], *long_prompt[100:110]]
    if "whole" not in gemma.cached:
        gemma.ask("whole", long_prompt, 1)
    cold = gemma.ask(f"cold {kept}", tokens, 4, use_cache=False)
    assert gemma.ask(f"warm {kept}", tokens, 4) == cold
    assert gemma.ask(f"again {kept}", tokens, 4) == cold
    assert gemma.cached[f"warm {kept}"] > 0
    assert gemma.cached[f"again {kept}"] == (len(tokens) - 1) // 16 * 16
