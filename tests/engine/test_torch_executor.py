"""The executor against plain `transformers`: the same greedy tokens, alone, together, in any chunks."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from keepwarm.core.errors import BadSetting, InvariantBroken, TooLittleMemory
from keepwarm.core.ids import BlockId, RequestId, Slot, block_ids, token_ids
from keepwarm.core.sampling import GREEDY, Sampling
from keepwarm.core.step import BlockChange, SequenceStart, SequenceWork, StepId, StepPlan
from keepwarm.engine.settings import EngineSettings
from tests.engine.driver import Driver, Turn

pytest.importorskip("torch")

import torch

from keepwarm.engine.checkpoint import DENSE_DECODERS, inspect_checkpoint
from keepwarm.engine.model_loading import load_model
from keepwarm.engine.torch_executor import TorchExecutor, build_torch_executor
from tests.engine.tiny_models import (
    CONFIGS,
    CONTEXT_TOKENS,
    MORE_CONFIGS,
    VOCAB_SIZE,
    WINDOW_TOKENS,
    assert_same_tokens,
    config_for,
)

pytestmark = pytest.mark.engine

BLOCK_SIZE = 4
TinyModel = Callable[[str], Path]


def build(folder: Path | str, **changes: Any) -> TorchExecutor:
    settings: dict[str, Any] = {"block_size": BLOCK_SIZE, "max_num_seqs": 8, "device_cache_gb": 0.02}
    settings["num_threads"] = 1  # tiny products gain nothing from more, and a busy machine makes them wait
    executor, _ = build_torch_executor(EngineSettings(model_path=str(folder), **(settings | changes)))
    return cast(TorchExecutor, executor)


def prompt(num_tokens: int, seed: int) -> list[int]:
    chosen = random.Random(seed)
    return [chosen.randrange(3, VOCAB_SIZE) for _ in range(num_tokens)]


def _plan(step_id: int, **parts: Any) -> StepPlan:
    return StepPlan(step_id=StepId(step_id), **parts)


def _start(slot: int, tokens: list[int], blocks: Any) -> SequenceStart:
    return SequenceStart(
        slot=Slot(slot),
        request_id=RequestId(f"turn-{slot}"),
        tokens=token_ids(tokens),
        num_prompt_tokens=len(tokens),
        blocks=block_ids(blocks),
        sampling=GREEDY,
    )


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "gemma3_as_gguf"])
def test_greedy_tokens_equal_transformers_alone_and_in_a_mixed_batch(
    name: str, tiny_model: TinyModel
) -> None:
    folder = tiny_model(name)
    plain = load_model(inspect_checkpoint(str(folder)), torch.float32, attention="sdpa")
    executor = build(folder)
    [alone] = Driver(executor).run([Turn(prompt=prompt(45, seed=1), num_tokens=24)])
    assert_same_tokens(plain, prompt(45, seed=1), alone)
    executor = build(folder)
    # Prefill chunks of odd sizes beside decodes, on blocks that do not follow each other.
    turns = [
        Turn(prompt=prompt(length, seed=length), num_tokens=12, chunk_tokens=chunk, starts_at_step=start)
        for length, chunk, start in ((45, 7, 0), (1, 9, 1), (80, 13, 2), (33, 33, 4), (16, 1, 0), (64, 5, 3))
    ]
    outputs = Driver(executor, shuffle_seed=5).run(turns)
    for turn, output in zip(turns, outputs, strict=True):
        assert_same_tokens(plain, turn.prompt, output)


@pytest.mark.parametrize("name", MORE_CONFIGS)
def test_further_kinds_of_models_generate_the_same_tokens_too(name: str, tiny_model: TinyModel) -> None:
    folder = tiny_model(name)
    plain = load_model(inspect_checkpoint(str(folder)), torch.float32, attention="sdpa")
    turns = [
        Turn(prompt=prompt(length, seed=length), num_tokens=6, chunk_tokens=chunk, starts_at_step=start)
        for length, chunk, start in ((40, 9, 0), (1, 9, 1), (33, 33, 3))
    ]
    for turn, output in zip(turns, Driver(build(folder), shuffle_seed=5).run(turns), strict=True):
        assert_same_tokens(plain, turn.prompt, output)


def test_every_supported_kind_is_compared_here() -> None:
    compared = {config_for(name).model_type for name in (*CONFIGS, *MORE_CONFIGS)}
    assert compared == DENSE_DECODERS


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_half_precision_runs_and_stays_close(name: str, tiny_model: TinyModel) -> None:
    def logprobs(dtype: str) -> list[float]:
        sampling = Sampling(temperature=0.0, num_logprobs=0)
        turn = Turn(prompt=prompt(40, seed=6), num_tokens=1, chunk_tokens=30, sampling=sampling)
        Driver(build(tiny_model(name), dtype=dtype), shuffle_seed=2).run([turn])
        return [entry.logprob for entry in turn.logprobs]

    assert logprobs("bfloat16") == pytest.approx(logprobs("float32"), abs=0.3)


def test_greedy_tokens_equal_transformers_for_the_embedded_model(embedded_model_path: str) -> None:
    plain = load_model(inspect_checkpoint(embedded_model_path), torch.float32, attention="sdpa")
    executor = build(embedded_model_path, block_size=16, device_cache_gb=0.5)
    prompts = [[504, 3575, 282, 4649, 314], [504, 3575, 282, 4649, 314] * 12, prompt(40, seed=3)]
    [alone] = Driver(executor).run([Turn(prompt=prompts[0], num_tokens=10)])
    assert_same_tokens(plain, prompts[0], alone)
    turns = [
        Turn(prompt=tokens, num_tokens=6, chunk_tokens=chunk)
        for tokens, chunk in zip(prompts, (3, 31, 64), strict=True)
    ]
    for turn, output in zip(turns, Driver(executor, shuffle_seed=1).run(turns), strict=True):
        assert_same_tokens(plain, turn.prompt, output)
    del plain, executor
    gc.collect()


def test_tied_embeddings_are_held_once(embedded_model_path: str) -> None:
    model = load_model(inspect_checkpoint(embedded_model_path), torch.float32)
    head, embedding = (model.get_submodule(name).weight for name in ("lm_head", "model.embed_tokens"))
    assert isinstance(head, torch.Tensor)
    assert isinstance(embedding, torch.Tensor)
    assert head.data_ptr() == embedding.data_ptr()


def test_layers_with_a_window_are_a_group_of_their_own(tiny_model: TinyModel) -> None:
    groups = build(tiny_model("gemma3")).limits.layout.groups
    assert [(group.kind, group.num_layers, group.window_tokens) for group in groups] == [
        ("full", 1, None),
        ("window", 2, WINDOW_TOKENS),
    ]
    assert groups[0].bytes_per_token == 2 * 2 * 32 * 4


def test_cached_blocks_are_read_and_not_computed_again(tiny_model: TinyModel) -> None:
    executor = build(tiny_model("llama"))
    tokens = prompt(40, seed=8)
    [cold] = Driver(executor).run([Turn(prompt=tokens, num_tokens=8)])
    # The first 9 blocks still hold the first 36 tokens' KV; the rest goes elsewhere, in two stretches.
    blocks = [*range(9), 30, 21, 22, 23]
    start = _start(0, tokens, blocks)
    executor.submit(
        _plan(100, starts=[start], works=[SequenceWork(slot=Slot(0), start=36, end=40, sample=True)])
    )
    warm = [executor.collect().outputs[0].tokens[0]]
    for position in range(40, 47):
        work = SequenceWork(slot=Slot(0), start=position, end=position + 1, sample=True)
        executor.submit(_plan(100 + position, works=[work]))
        warm.append(executor.collect().outputs[0].tokens[0])
    assert warm == cold


def test_a_plan_may_name_a_token_that_an_uncollected_plan_samples(tiny_model: TinyModel) -> None:
    executor = build(tiny_model("llama"))
    tokens = prompt(10, seed=9)
    [expected] = Driver(executor).run([Turn(prompt=tokens, num_tokens=2)])
    first = SequenceWork(slot=Slot(1), start=0, end=10, sample=True)
    executor.submit(_plan(50, starts=[_start(1, tokens, range(20, 24))], works=[first]))
    executor.submit(_plan(51, works=[SequenceWork(slot=Slot(1), start=10, end=11, sample=True)]))
    results = [executor.collect(), executor.collect()]
    assert [result.step_id for result in results] == [50, 51]
    assert [result.outputs[0].tokens[0] for result in results] == expected


def test_a_replaced_block_is_read_from_its_new_place(tiny_model: TinyModel) -> None:
    executor = build(tiny_model("llama"))
    tokens = prompt(12, seed=10)
    [expected] = Driver(executor).run([Turn(prompt=tokens, num_tokens=1)])
    # Two slots compute the same blocks; then the second one's are replaced by the first one's.
    works = [SequenceWork(slot=Slot(slot), start=0, end=8, sample=False) for slot in (0, 1)]
    starts = [_start(0, tokens, range(3)), _start(1, tokens, range(10, 13))]
    executor.submit(_plan(60, starts=starts, works=works))
    assert executor.collect().outputs == ()
    changes = [BlockChange(slot=Slot(1), index=index, block=BlockId(index)) for index in (0, 1)]
    last = SequenceWork(slot=Slot(1), start=8, end=12, sample=True)
    executor.submit(_plan(61, changes=changes, works=[last]))
    assert executor.collect().outputs[0].tokens == tuple(expected)


def test_an_empty_plan_is_answered_by_an_empty_result(tiny_model: TinyModel) -> None:
    executor = build(tiny_model("llama"))
    executor.submit(_plan(1))
    result = executor.collect()
    assert (result.step_id, result.outputs) == (1, ())
    executor.close()


def test_a_seeded_draw_is_the_same_alone_beside_others_and_after_a_preemption(tiny_model: TinyModel) -> None:
    folder = tiny_model("llama")
    sampling = Sampling(temperature=1.3, top_p=0.95, seed=77)
    tokens = prompt(20, seed=2)
    [alone] = Driver(build(folder)).run([Turn(prompt=tokens, num_tokens=12, sampling=sampling)])
    others = [Turn(prompt=prompt(30, seed=i), num_tokens=9, sampling=Sampling(seed=i)) for i in range(4)]
    together = Driver(build(folder)).run([*others, Turn(prompt=tokens, num_tokens=12, sampling=sampling)])
    assert together[-1] == alone
    resumed = Turn(prompt=tokens + alone[:5], num_tokens=7, sampling=sampling)
    assert Driver(build(folder)).run([resumed]) == [alone[5:]]


def test_unseeded_draws_differ_between_requests(tiny_model: TinyModel) -> None:
    sampling = Sampling(temperature=2.0)
    turns = [Turn(prompt=prompt(20, seed=2), num_tokens=20, sampling=sampling) for _ in range(2)]
    one, other = Driver(build(tiny_model("llama"))).run(turns)
    assert one != other


def test_logprobs_come_only_where_they_were_asked_for(tiny_model: TinyModel) -> None:
    asked = Turn(prompt=prompt(9, seed=1), num_tokens=3, sampling=Sampling(temperature=0.0, num_logprobs=2))
    not_asked = Turn(prompt=prompt(9, seed=1), num_tokens=3)
    Driver(build(tiny_model("llama"))).run([asked, not_asked])
    assert asked.output == not_asked.output
    assert [entry.top[0][0] for entry in asked.logprobs] == asked.output
    assert all(len(entry.top) == 2 and entry.logprob == entry.top[0][1] for entry in asked.logprobs)
    assert not_asked.logprobs == []


def _wrong_plans() -> Iterator[tuple[str, dict[str, Any]]]:
    work = SequenceWork(slot=Slot(0), start=0, end=8, sample=False)
    far = SequenceWork(slot=Slot(0), start=4, end=9, sample=False)
    early = SequenceWork(slot=Slot(0), start=0, end=4, sample=True)
    free = SequenceWork(slot=Slot(3), start=0, end=1, sample=False)
    tokens = list(range(3, 11))
    yield "ends slot 5, which is free", {"ended": [Slot(5)]}
    yield "starts slot 0, which", {"starts": [_start(0, tokens, [1, 2])]}
    yield "starts slot 8, of 8", {"starts": [_start(8, tokens, [1, 2])]}
    yield "with 513 tokens of 512", {"starts": [_start(1, [5] * 513, [1, 2])]}
    yield "outside the vocabulary", {"starts": [_start(1, [VOCAB_SIZE], [1, 2])]}
    yield "block 99999999 of", {"starts": [_start(1, tokens, [1, 99999999])]}
    yield "changes block 4 of slot 0", {"changes": [BlockChange(slot=Slot(0), index=4, block=BlockId(5))]}
    yield "changes block 0 of slot 3", {"changes": [BlockChange(slot=Slot(3), index=0, block=BlockId(5))]}
    yield "of slot 3, which is free", {"works": [free]}
    yield r"\[4, 9\) of slot 0, which has 8 tokens", {"works": [far]}
    yield "samples, but 8 tokens are known", {"works": [early]}
    yield "twice", {"works": [work, work]}


@pytest.mark.parametrize(("message", "plan"), list(_wrong_plans()))
def test_a_wrong_plan_is_refused_by_name(message: str, plan: dict[str, Any], tiny_model: TinyModel) -> None:
    executor = build(tiny_model("llama"))
    executor.submit(_plan(1, starts=[_start(0, list(range(3, 11)), [0, 1])]))
    executor.collect()
    with pytest.raises(InvariantBroken, match=message):
        executor.submit(_plan(2, **plan))


def test_work_beyond_the_held_blocks_or_past_a_gap_is_refused(tiny_model: TinyModel) -> None:
    executor = build(tiny_model("llama"))
    tokens = prompt(20, seed=1)
    first = SequenceWork(slot=Slot(0), start=0, end=4, sample=False)
    executor.submit(_plan(1, starts=[_start(0, tokens, [0, 1])], works=[first]))
    executor.collect()
    with pytest.raises(InvariantBroken, match="has only 2 blocks"):
        executor.submit(_plan(2, works=[SequenceWork(slot=Slot(0), start=4, end=9, sample=False)]))
    with pytest.raises(InvariantBroken, match="only 4 are computed"):
        executor.submit(_plan(3, works=[SequenceWork(slot=Slot(0), start=5, end=8, sample=False)]))


def _window_start(blocks: list[int] | None, *, first: int = 0) -> SequenceStart:
    window_blocks = None if blocks is None else block_ids(blocks)
    start = _start(0, list(range(3, 123)), range(30))
    return replace(start, window_first=first, window_blocks=window_blocks)


def _wrong_window_plans() -> Iterator[tuple[str, SequenceStart, SequenceWork | BlockChange]]:
    work = SequenceWork(slot=Slot(0), start=100, end=104, sample=False)
    yield "starts slot 0, and [0-9]+ window blocks are there", _window_start(None), work
    yield "window block 999999 of", _window_start([999_999]), work
    yield r"with window blocks \[-1, 1\)", _window_start([1, 2], first=-1), work
    yield r"only the window blocks \[22, 26\)", _window_start([5, 6, 7, 8], first=22), work
    yield r"only the window blocks \[21, 25\)", _window_start([5, 6, 7, 8], first=21), work
    gap = BlockChange(slot=Slot(0), index=25, block=BlockId(0), in_windows=True)
    yield "changes window block 25 of slot 0", _window_start([5], first=21), gap


@pytest.mark.parametrize(("message", "start", "rest"), list(_wrong_window_plans()))
def test_a_wrong_table_of_windows_is_refused_by_name(
    message: str, start: SequenceStart, rest: SequenceWork | BlockChange, tiny_model: TinyModel
) -> None:
    """Token 100 reads from token 85 on, in block 21."""
    executor = build(tiny_model("gemma3"))
    changes, works = ([rest], []) if isinstance(rest, BlockChange) else ([], [rest])
    with pytest.raises(InvariantBroken, match=message):
        executor.submit(_plan(1, starts=[start], changes=changes, works=works))


def test_windows_without_blocks_of_their_own_get_none(tiny_model: TinyModel) -> None:
    with pytest.raises(InvariantBroken, match="starts slot 0, and 0 window blocks are there"):
        build(tiny_model("llama")).submit(_plan(1, starts=[_window_start([1])]))


def test_a_third_uncollected_step_and_a_collect_without_one_are_refused(tiny_model: TinyModel) -> None:
    executor = build(tiny_model("llama"))
    with pytest.raises(InvariantBroken, match="without a submitted step"):
        executor.collect()
    executor.submit(_plan(1))
    executor.submit(_plan(2))
    with pytest.raises(InvariantBroken, match="2 steps uncollected"):
        executor.submit(_plan(3))
    with pytest.raises(InvariantBroken, match="closed with 2"):
        executor.close()


def test_logits_that_are_not_numbers_are_an_error_and_never_a_token(tiny_model: TinyModel) -> None:
    executor = build(tiny_model("llama"))
    model = executor._model
    assert model is not None
    with torch.inference_mode():
        model.get_parameter("model.norm.weight").fill_(float("nan"))
    work = SequenceWork(slot=Slot(0), start=0, end=4, sample=True)
    with pytest.raises(InvariantBroken, match="no finite logits for token 4 of turn-0"):
        executor.submit(_plan(1, starts=[_start(0, [5, 6, 7, 8], [0])], works=[work]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_model_len": CONTEXT_TOKENS + 1}, "--max-model-len 513: this model was made for 1 to 512"),
        ({"max_num_seqs": 0}, "--max-num-seqs 0"),
        ({"block_size": 0}, "--block-size 0"),
        ({"device_cache_gb": -1.0}, "--device-cache-gb -1.0"),
        ({"gpu_memory_utilization": 1.5}, "--gpu-memory-utilization 1.5"),
        ({"dtype": "int8"}, "--dtype int8"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_its_name(
    changes: dict[str, Any], message: str, tiny_model: TinyModel
) -> None:
    with pytest.raises(BadSetting, match=message):
        build(tiny_model("llama"), **changes)


def test_too_little_memory_says_what_is_needed_and_what_to_lower(tiny_model: TinyModel) -> None:
    with pytest.raises(TooLittleMemory, match="lower --max-model-len to 12 or raise --device-cache-gb"):
        build(tiny_model("llama"), device_cache_gb=0.00001)


def test_the_description_names_model_device_and_precision(tiny_model: TinyModel) -> None:
    _, text = build_torch_executor(
        EngineSettings(model_path=str(tiny_model("qwen3")), device_cache_gb=0.01, num_threads=2)
    )
    assert text == "qwen3 on cpu, float32, 2 threads, keepwarm_paged attention"
