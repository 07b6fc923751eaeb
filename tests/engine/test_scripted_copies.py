"""The scripted executor copies what its blocks hold, late, and refuses plans that cannot wait."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from keepwarm.core.errors import BadSetting, InvariantBroken
from keepwarm.core.host_tier import HostArena
from keepwarm.core.layout import CacheLayout, LayerGroup
from keepwarm.core.step import CopyResult, ExecutorLimits, StepId, StepPlan, StepResult
from keepwarm.engine.scripted import ScriptedExecutor
from tests.engine.arenas import copies, flip_a_bit, make_arena
from tests.engine.test_scripted_proofs import PROMPT, start, work

OTHER = [token + 10 for token in PROMPT]


def make_limits(bytes_per_token: int = 8) -> ExecutorLimits:
    group = LayerGroup(kind="full", num_layers=1, window_tokens=None, bytes_per_token=bytes_per_token)
    layout = CacheLayout(block_size=4, groups=(group,))
    return ExecutorLimits(layout=layout, num_blocks=64, max_num_seqs=4, max_model_len=128, vocab_size=32)


class Steps:
    def __init__(self, *, bytes_per_token: int = 8, arena: HostArena | None = None, **options: Any) -> None:
        limits = make_limits(bytes_per_token)
        self.executor = ScriptedExecutor(limits=limits, **options)
        self.arena = arena or make_arena(limits.layout)
        self.executor.attach_arena(self.arena)
        self._last = 0

    def submit(self, **parts: Any) -> None:
        self._last += 1
        self.executor.submit(StepPlan(step_id=StepId(self._last), **parts))

    def run(self, **parts: Any) -> StepResult:
        self.submit(**parts)
        return self.executor.collect()

    def run_prompt(self, tokens: list[int], blocks: list[int]) -> int:
        """The token sampled after a prompt that is computed into these blocks, alone."""
        sampled = self.run(starts=[start(0, tokens, blocks)], works=[work(0, len(tokens), sample=True)])
        self.run(ended=[0])
        return sampled.outputs[0].tokens[0]

    def run_warm(self, blocks: list[int], **parts: Any) -> int:
        """The same of `PROMPT`, whose first two blocks are there."""
        [output] = self.run(
            starts=[start(1, PROMPT, blocks)], works=[work(8, 10, slot=1, sample=True)], **parts
        ).outputs
        return output.tokens[0]


def ended(results: Sequence[CopyResult]) -> list[tuple[int, bool]]:
    return [(result.copy_id, result.is_sound) for result in results]


@pytest.mark.parametrize("bytes_per_token", [8, 4096])
def test_what_was_copied_down_and_overwritten_is_read_again_once_it_is_copied_up(
    bytes_per_token: int,
) -> None:
    steps = Steps(bytes_per_token=bytes_per_token)
    cold = steps.run_prompt(PROMPT, [1, 2, 3])
    down = steps.run(copies=[copies(1, "demote", [1, 2], [9, 4])])
    assert ended(down.copies) == [(1, True)]
    assert down.copies[0].num_bytes == 2 * 4 * bytes_per_token
    steps.run_prompt(OTHER, [1, 2, 3])
    assert ended(steps.run(copies=[copies(2, "promote", [7, 5], [9, 4])]).copies) == [(2, True)]
    assert steps.run_warm([7, 5, 3]) == cold


def test_two_executors_share_what_one_of_them_copied_down() -> None:
    one = Steps()
    cold = one.run_prompt(PROMPT, [1, 2, 3])
    one.run(copies=[copies(1, "demote", [1, 2], [0, 1])])
    other = Steps(arena=one.arena)
    other.run(copies=[copies(1, "promote", [1, 2], [0, 1])])
    assert other.run_warm([1, 2, 3]) == cold


def test_a_copy_ends_so_many_steps_later_and_moves_nothing_before() -> None:
    steps = Steps(copy_steps=2)
    cold = steps.run_prompt(PROMPT, [1, 2, 3])
    blank = bytes(steps.arena.memory)
    assert steps.run(copies=[copies(1, "demote", [1, 2], [0, 1])]).copies == ()
    assert steps.run().copies == ()
    assert bytes(steps.arena.memory) == blank
    assert ended(steps.run().copies) == [(1, True)]
    assert bytes(steps.arena.memory) != blank
    steps.run(copies=[copies(2, "promote", [4, 5], [0, 1])])
    steps.run()
    steps.run()
    assert steps.run_warm([4, 5, 3]) == cold


def test_a_plan_that_awaits_a_copy_has_one_ended_and_one_with_works_does_not_wait() -> None:
    steps = Steps(copy_steps=50)
    steps.run_prompt(PROMPT, [1, 2, 3])
    steps.run(copies=[copies(1, "demote", [1], [0]), copies(2, "demote", [2], [1])])
    working = steps.run(starts=[start(2, OTHER, [4, 5, 6])], works=[work(0, 1, slot=2)], awaits_copy=True)
    assert working.copies == ()
    assert ended(steps.run(awaits_copy=True).copies) == [(1, True)]
    assert ended(steps.run(awaits_copy=True).copies) == [(2, True)]
    assert steps.run(awaits_copy=True).copies == ()


def test_a_result_tells_of_no_copy_of_a_later_plan() -> None:
    steps = Steps()
    steps.run_prompt(PROMPT, [1, 2, 3])
    steps.submit(copies=[copies(1, "demote", [1], [0], before_works=True)])
    steps.submit(copies=[copies(2, "demote", [2], [1], before_works=True)], awaits_copy=True)
    assert ended(steps.executor.collect().copies) == [(1, True)]
    assert ended(steps.executor.collect().copies) == [(2, True)]


def test_blocks_copied_down_before_the_works_may_be_overwritten_by_them_and_copied_over() -> None:
    steps = Steps(copy_steps=3)
    cold = steps.run_prompt(PROMPT, [1, 2, 3])
    down = copies(1, "demote", [1, 2], [0, 1], before_works=True)
    result = steps.run(copies=[down], starts=[start(0, OTHER, [1, 2, 3])], works=[work(0, 10)])
    assert ended(result.copies) == [(1, True)]
    steps.run(ended=[0], copies=[copies(2, "promote", [4, 5], [0, 1])])
    while not steps.run(awaits_copy=True).copies:
        pass
    # Other contents go down, and in the same plan these come up to the same places.
    again = copies(3, "demote", [1, 2], [2, 3], before_works=True)
    steps.run(copies=[again, copies(4, "promote", [1, 2], [0, 1])])
    assert ended(steps.run(awaits_copy=True).copies) == [(4, True)]
    assert steps.run_warm([1, 2, 3]) == cold


def test_a_work_on_blocks_that_are_being_copied_up_is_refused_until_the_result_is_collected() -> None:
    steps = Steps()
    steps.run_prompt(PROMPT, [1, 2, 3])
    steps.run(copies=[copies(1, "demote", [1, 2], [0, 1])])
    steps.submit(copies=[copies(2, "promote", [4, 5], [0, 1])])
    with pytest.raises(InvariantBroken, match=r"turn-1: works on \[8, 10\), in a block .* copied up: 4"):
        steps.submit(starts=[start(1, PROMPT, [4, 5, 6])], works=[work(8, 10, slot=1)])


def test_a_work_over_blocks_that_are_being_copied_down_is_refused_and_beside_them_is_not() -> None:
    steps = Steps(copy_steps=9)
    steps.run_prompt(PROMPT, [1, 2, 3])
    steps.run(copies=[copies(1, "demote", [1, 2], [0, 1])])
    steps.run_warm([1, 2, 3])
    with pytest.raises(InvariantBroken, match=r"turn-0: works on \[0, 10\), over a block .* copied down: 2"):
        steps.run(starts=[start(0, OTHER, [4, 2, 6])], works=[work(0, 10)])


def test_what_was_never_computed_cannot_be_copied_down() -> None:
    steps = Steps()
    steps.run_prompt(PROMPT, [1, 2, 3])
    with pytest.raises(InvariantBroken, match="copy 1: block 3 was never computed"):
        steps.run(copies=[copies(1, "demote", [2, 3], [0, 1])])


def test_a_slot_with_other_contents_shows_at_the_step_that_reads_it() -> None:
    steps = Steps()
    steps.run_prompt(PROMPT, [1, 2, 3])
    steps.run(copies=[copies(1, "demote", [1, 2], [0, 1])])
    steps.run(copies=[copies(2, "promote", [4, 5], [1, 0])])
    with pytest.raises(InvariantBroken, match="block 4 does not hold token 0"):
        steps.run_warm([4, 5, 6])


def test_every_flipped_bit_of_host_memory_shows() -> None:
    steps = Steps()
    steps.run_prompt(PROMPT, [1, 2, 3])
    steps.run(copies=[copies(1, "demote", [1, 2], [6, 7])])
    flip_a_bit(steps.arena, 7, offset=31)
    assert ended(steps.run(copies=[copies(2, "promote", [4], [6])]).copies) == [(2, True)]
    assert ended(steps.run(copies=[copies(3, "promote", [8, 5], [6, 7])]).copies) == [(3, False)]


def test_the_next_promotion_can_be_made_to_fail() -> None:
    steps = Steps()
    steps.run_prompt(PROMPT, [1, 2, 3])
    steps.executor.corrupt_next_promotion = True
    assert ended(steps.run(copies=[copies(1, "demote", [1, 2], [6, 7])]).copies) == [(1, True)]
    assert ended(steps.run(copies=[copies(2, "promote", [4], [6])]).copies) == [(2, False)]
    assert not steps.executor.corrupt_next_promotion
    assert ended(steps.run(copies=[copies(3, "promote", [5], [7])]).copies) == [(3, True)]


def test_results_say_the_times_they_were_told_to_say() -> None:
    steps = Steps(token_s=0.5, block_copy_s=2.0)
    result = steps.run(starts=[start(0, PROMPT, [1, 2, 3])], works=[work(0, 10)])
    assert result.compute_s == 5.0
    result = steps.run(copies=[copies(1, "demote", [1, 2], [6, 7])])
    assert (result.compute_s, result.copies[0].copy_s) == (0.0, 4.0)


def test_slots_too_small_for_the_digests_are_refused() -> None:
    limits = make_limits(bytes_per_token=1)
    with pytest.raises(BadSetting, match=r"slot of 4 bytes is too small for the scripted engine.* keeps 32"):
        ScriptedExecutor(limits=limits).attach_arena(make_arena(limits.layout))


def test_host_memory_can_be_unmapped_once_the_executor_is_closed() -> None:
    memory = bytearray(make_arena(make_limits().layout).layout.total_bytes)
    arena = HostArena(memory=memoryview(memory), layout=make_arena(make_limits().layout).layout)
    steps = Steps(arena=arena)
    steps.run_prompt(PROMPT, [1, 2, 3])
    steps.run(copies=[copies(1, "demote", [1, 2], [6, 7])])
    steps.executor.close()
    arena.memory.release()
