"""KV that was copied down, overwritten and copied up again gives the tokens of a cold read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import pytest

from keepwarm.core.errors import BadSetting, InvariantBroken
from keepwarm.core.host_tier import ArenaLayout, HostArena
from keepwarm.core.ids import RequestId, Slot, block_ids, token_ids
from keepwarm.core.sampling import GREEDY
from keepwarm.core.step import BlockCopies, SequenceStart, SequenceWork, StepId, StepPlan, StepResult
from keepwarm.engine.settings import EngineSettings
from tests.engine.arenas import copies, flip_a_bit, make_arena

pytest.importorskip("torch")

import torch

from keepwarm.engine.checkpoint import inspect_checkpoint
from keepwarm.engine.fast_layers import use_fast_layers
from keepwarm.engine.model_loading import load_model
from keepwarm.engine.torch_executor import TorchExecutor, build_torch_executor, probe_layers
from tests.engine.test_torch_executor import prompt

pytestmark = pytest.mark.engine

BLOCK_SIZE = 4
CACHED = 36
"""Tokens of a prompt of 40 whose blocks are copied."""
TinyModel = Callable[[str], Path]


def build(folder: Path, *, max_model_len: int | None = None) -> TorchExecutor:
    settings = EngineSettings(
        model_path=str(folder),
        max_model_len=max_model_len,
        block_size=BLOCK_SIZE,
        max_num_seqs=8,
        device_cache_gb=0.02,
        num_threads=1,
    )
    executor, _ = build_torch_executor(settings)
    return cast(TorchExecutor, executor)


class Steps:
    def __init__(self, executor: TorchExecutor, arena: HostArena | None = None) -> None:
        self.executor = executor
        self.arena = arena or make_arena(executor.limits.layout, num_slots=32)
        executor.attach_arena(self.arena)
        self._last_step = 0
        self._last_copy = 0

    def copies(
        self,
        direction: Literal["promote", "demote"],
        blocks: Sequence[int],
        slots: Sequence[int],
        *,
        before_works: bool = False,
    ) -> BlockCopies:
        self._last_copy += 1
        return copies(self._last_copy, direction, blocks, slots, before_works=before_works)

    def submit(self, **parts: Any) -> None:
        self._last_step += 1
        self.executor.submit(StepPlan(step_id=StepId(self._last_step), **parts))

    def run(self, **parts: Any) -> StepResult:
        self.submit(**parts)
        return self.executor.collect()

    def copy(self, *begun: BlockCopies) -> list[bool]:
        """Whether each was sound, in the order in which they ended."""
        results = [*self.run(copies=begun).copies]
        while len(results) < len(begun):
            results += self.run(awaits_copy=True).copies
        return [result.is_sound for result in results]

    def generate(
        self, tokens: list[int], blocks: Sequence[int], *, cached: int = 0, **parts: Any
    ) -> list[int]:
        """Eight greedy tokens, the first `cached` of the prompt being in the first blocks already."""
        start = SequenceStart(
            slot=Slot(0),
            request_id=RequestId("turn"),
            tokens=token_ids(tokens),
            num_prompt_tokens=len(tokens),
            blocks=block_ids(blocks),
            sampling=GREEDY,
        )
        output: list[int] = []
        first, last = cached, len(tokens)
        for number in range(8):
            work = SequenceWork(slot=Slot(0), start=first, end=last, sample=True)
            begun = {"starts": [start], **parts} if number == 0 else {}
            output += self.run(works=[work], **begun).outputs[0].tokens
            first, last = last, last + 1
        self.run(ended=[Slot(0)])
        return output


COLD = range(12)
"""Blocks of the first read: 40 tokens and 8 more."""
NUM_COPIED = CACHED // BLOCK_SIZE
SCATTERED = [20, 21, 33, 22, 40, 41, 42, 15, 30]


@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral", "gemma3"])
def test_copied_down_overwritten_and_copied_up_says_what_a_cold_read_says(
    name: str, tiny_model: TinyModel
) -> None:
    # In so short a context, windows have no blocks of their own.
    steps = Steps(build(tiny_model(name), max_model_len=100))
    tokens = prompt(40, seed=8)
    cold = steps.generate(tokens, COLD)
    slots = [9, 4, 5, 6, 7, 8, 30, 31, 0]
    assert steps.copy(steps.copies("demote", COLD[:NUM_COPIED], slots)) == [True]
    assert steps.generate(prompt(40, seed=9), COLD) != cold
    assert steps.copy(steps.copies("promote", SCATTERED, slots)) == [True]
    assert steps.generate(tokens, [*SCATTERED, 50, 51, 52], cached=CACHED) == cold


def test_an_executor_whose_windows_have_blocks_of_their_own_takes_no_arena(tiny_model: TinyModel) -> None:
    executor = build(tiny_model("gemma3"))
    with pytest.raises(BadSetting, match="--host-cache-gb: this model's layers with a window of 16 tokens"):
        executor.attach_arena(make_arena(executor.limits.layout, num_slots=4))


def test_another_executor_reads_what_one_copied_down(tiny_model: TinyModel) -> None:
    one = Steps(build(tiny_model("llama")))
    tokens = prompt(40, seed=8)
    cold = one.generate(tokens, COLD)
    one.copy(one.copies("demote", COLD[:NUM_COPIED], range(NUM_COPIED)))
    one.executor.close()
    other = Steps(build(tiny_model("llama")), one.arena)
    assert other.copy(other.copies("promote", SCATTERED, range(NUM_COPIED))) == [True]
    assert other.generate(tokens, [*SCATTERED, 50, 51, 52], cached=CACHED) == cold


def test_works_of_the_same_plan_overwrite_what_is_copied_down_before_them(tiny_model: TinyModel) -> None:
    steps = Steps(build(tiny_model("llama")))
    tokens, others = prompt(40, seed=8), prompt(40, seed=9)
    cold = steps.generate(tokens, COLD)
    other_cold = steps.generate(others, range(60, 72))
    down = steps.copies("demote", COLD[:NUM_COPIED], range(NUM_COPIED), before_works=True)
    assert steps.generate(others, COLD, copies=[down]) == other_cold
    steps.copy(steps.copies("promote", SCATTERED, range(NUM_COPIED)))
    assert steps.generate(tokens, [*SCATTERED, 50, 51, 52], cached=CACHED) == cold


def test_steps_go_on_beside_copies_with_the_same_tokens(tiny_model: TinyModel) -> None:
    steps = Steps(build(tiny_model("llama")))
    tokens, others = prompt(40, seed=8), prompt(40, seed=9)
    cold = steps.generate(tokens, COLD)
    other_cold = steps.generate(others, range(60, 72))
    down = steps.copies("demote", COLD[:NUM_COPIED], range(NUM_COPIED))
    assert steps.generate(others, range(72, 84), copies=[down]) == other_cold
    while steps.run(awaits_copy=True).copies:
        pass
    up = steps.copies("promote", SCATTERED, range(NUM_COPIED))
    assert steps.generate(others, range(84, 96), copies=[up]) == other_cold
    while steps.run(awaits_copy=True).copies:
        pass
    assert steps.generate(tokens, [*SCATTERED, 50, 51, 52], cached=CACHED) == cold


def test_a_flipped_bit_of_the_first_or_last_block_of_a_copy_is_found(tiny_model: TinyModel) -> None:
    steps = Steps(build(tiny_model("llama")))
    steps.generate(prompt(40, seed=8), COLD)
    steps.copy(steps.copies("demote", [0, 1, 2], [1, 2, 3]))
    flip_a_bit(steps.arena, 3, offset=steps.arena.layout.slot_bytes - 1)
    assert steps.copy(steps.copies("promote", [20, 21], [1, 2])) == [True]
    assert steps.copy(steps.copies("promote", [20, 21, 22], [1, 2, 3])) == [False]


def test_results_say_how_long_works_took_and_what_a_copy_moved(tiny_model: TinyModel) -> None:
    steps = Steps(build(tiny_model("llama")))
    work = SequenceWork(slot=Slot(0), start=0, end=40, sample=False)
    start = SequenceStart(
        slot=Slot(0),
        request_id=RequestId("turn"),
        tokens=token_ids(prompt(40, seed=8)),
        num_prompt_tokens=40,
        blocks=block_ids(range(10)),
        sampling=GREEDY,
    )
    down = steps.copies("demote", [70], [1])
    result = steps.run(starts=[start], works=[work], copies=[down])
    assert result.compute_s > 0.0
    waited = steps.run(awaits_copy=True)
    assert waited.compute_s == 0.0
    [copied] = [*result.copies, *waited.copies]
    assert copied.num_bytes == steps.executor.limits.layout.bytes_per_block
    assert copied.copy_s > 0.0


def test_works_are_refused_on_blocks_whose_copies_are_not_collected(tiny_model: TinyModel) -> None:
    steps = Steps(build(tiny_model("llama")))
    tokens = prompt(40, seed=8)
    steps.generate(tokens, COLD)
    steps.copy(steps.copies("demote", [0, 1], [1, 2]))
    steps.submit(copies=[steps.copies("promote", [20, 21], [1, 2])])
    with pytest.raises(InvariantBroken, match=r"computes \[8, 40\) of slot 0, in a block .* copied up: 20"):
        steps.generate(tokens, [20, 21, *range(50, 60)], cached=8)


def test_without_host_memory_a_copy_is_refused(tiny_model: TinyModel) -> None:
    executor = build(tiny_model("llama"))
    with pytest.raises(InvariantBroken, match="slot 1 of 0"):
        executor.submit(StepPlan(step_id=StepId(1), copies=[copies(1, "demote", [1], [1])]))


def test_host_memory_cut_for_another_model_is_refused_with_both_sizes(tiny_model: TinyModel) -> None:
    executor = build(tiny_model("llama"))
    needed = executor.limits.layout.bytes_per_block
    cut = ArenaLayout(num_slots=4, slot_bytes=needed * 2)
    arena = HostArena(memory=memoryview(bytearray(cut.total_bytes)), layout=cut)
    with pytest.raises(BadSetting, match=f"slots of {needed * 2} bytes.* has {needed}"):
        executor.attach_arena(arena)


def test_other_host_memory_may_take_the_place_of_the_first(tiny_model: TinyModel) -> None:
    steps = Steps(build(tiny_model("llama")))
    tokens = prompt(40, seed=8)
    cold = steps.generate(tokens, COLD)
    steps.copy(steps.copies("demote", [0, 1], [1, 2]))
    steps.executor.attach_arena(make_arena(steps.executor.limits.layout, num_slots=64))
    steps.arena.memory.release()  # nobody looks there any more
    steps.copy(steps.copies("demote", COLD[:NUM_COPIED], range(50, 59)))
    steps.copy(steps.copies("promote", SCATTERED, range(50, 59)))
    assert steps.generate(tokens, [*SCATTERED, 50, 51, 52], cached=CACHED) == cold


def test_closing_during_copies_leaves_whole_slots_and_lets_go_of_the_memory(tiny_model: TinyModel) -> None:
    steps = Steps(build(tiny_model("llama")))
    tokens = prompt(40, seed=8)
    cold = steps.generate(tokens, COLD)
    begun = [steps.copies("demote", [block], [block]) for block in range(NUM_COPIED)]
    steps.run(copies=begun)
    steps.executor.close()
    kept = HostArena(memory=memoryview(bytearray(steps.arena.memory)), layout=steps.arena.layout)
    steps.arena.memory.release()
    other = Steps(build(tiny_model("llama")), kept)
    other.copy(other.copies("promote", SCATTERED, range(NUM_COPIED)))
    assert other.generate(tokens, [*SCATTERED, 50, 51, 52], cached=CACHED) == cold


def test_two_threads_copy_what_one_would(tiny_model: TinyModel) -> None:
    folder = tiny_model("llama")
    model = load_model(inspect_checkpoint(str(folder)), torch.float32)
    with torch.inference_mode():
        use_fast_layers(model)
    limits = build(folder).limits
    executor = TorchExecutor(
        model=model, shapes=probe_layers(model), limits=limits, dtype=torch.float32, copy_threads=2
    )
    steps = Steps(executor)
    tokens = prompt(40, seed=8)
    cold = steps.generate(tokens, COLD)
    downs = [steps.copies("demote", COLD[i : i + 3], range(i, i + 3)) for i in (0, 3, 6)]
    assert steps.copy(*downs) == [True] * 3
    ups = [steps.copies("promote", SCATTERED[i : i + 3], range(i, i + 3)) for i in (0, 3, 6)]
    assert steps.copy(*ups) == [True] * 3
    assert steps.generate(tokens, [*SCATTERED, 50, 51, 52], cached=CACHED) == cold
    executor.close()
