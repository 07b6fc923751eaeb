"""The scripted executor refuses what a wrong scheduler would do to it."""

from __future__ import annotations

from typing import Any

import pytest

from keepwarm.core.errors import InvariantBroken
from keepwarm.core.ids import BlockId, RequestId, Slot, block_ids, token_ids
from keepwarm.core.sampling import GREEDY
from keepwarm.core.step import BlockChange, SequenceStart, SequenceWork, StepId, StepPlan
from keepwarm.engine.scripted import ScriptedExecutor
from tests.sched.driver import make_limits

PROMPT = list(range(10))


class Steps:
    def __init__(self, *, verify: bool = True) -> None:
        self.executor = ScriptedExecutor(limits=make_limits(), verify=verify)
        self._last = 0

    def run(self, **parts: Any) -> list[int]:
        """One plan; the tokens it sampled."""
        self._last += 1
        self.executor.submit(StepPlan(step_id=StepId(self._last), **parts))
        return [token for output in self.executor.collect().outputs for token in output.tokens]


def start(slot: int, tokens: list[int], blocks: list[int]) -> SequenceStart:
    return SequenceStart(
        slot=Slot(slot),
        request_id=RequestId(f"turn-{slot}"),
        tokens=token_ids(tokens),
        num_prompt_tokens=len(tokens),
        blocks=block_ids(blocks),
        sampling=GREEDY,
    )


def work(first: int, last: int, *, slot: int = 0, sample: bool = False) -> SequenceWork:
    return SequenceWork(slot=Slot(slot), start=first, end=last, sample=sample)


def test_chunks_of_any_size_and_shared_blocks_say_what_one_read_says() -> None:
    whole = Steps().run(starts=[start(0, PROMPT, [5, 6, 7])], works=[work(0, 10, sample=True)])
    steps = Steps()
    steps.run(starts=[start(0, PROMPT, [3, 2, 1])], works=[work(0, 1)])
    steps.run(works=[work(1, 9)])
    assert steps.run(works=[work(9, 10, sample=True)]) == whole
    shared = start(1, PROMPT, [3, 2, 9])
    assert steps.run(starts=[shared], works=[work(8, 10, slot=1, sample=True)]) == whole


def test_sampled_tokens_are_read_like_the_prompt() -> None:
    steps = Steps()
    said = steps.run(starts=[start(0, PROMPT, [5, 6, 7, 8])], works=[work(0, 10, sample=True)])
    said += steps.run(works=[work(10, 11, sample=True)])
    again = start(1, PROMPT + said, [5, 6, 9])
    steps.run(starts=[again], works=[work(8, 12, slot=1, sample=True)])


@pytest.mark.parametrize("blocks", [[6, 5, 7], [5, 6, 30]])
def test_a_block_that_holds_something_else_shows(blocks: list[int]) -> None:
    steps = Steps()
    steps.run(starts=[start(0, PROMPT, [5, 6, 7])], works=[work(0, 10)])
    with pytest.raises(InvariantBroken, match="does not hold token"):
        steps.run(starts=[start(1, [*PROMPT, 1, 2], blocks)], works=[work(10, 12, slot=1)])


def test_another_beginning_under_the_same_later_tokens_shows() -> None:
    steps = Steps()
    steps.run(starts=[start(0, PROMPT, [5, 6, 7])], works=[work(0, 10)])
    with pytest.raises(InvariantBroken, match="block 5 does not hold token 0"):
        steps.run(starts=[start(1, [9, *PROMPT[1:]], [5, 6, 9])], works=[work(8, 10, slot=1)])


def test_a_block_swapped_under_a_running_sequence_shows() -> None:
    steps = Steps()
    steps.run(starts=[start(0, PROMPT, [5, 6, 7])], works=[work(0, 9)])
    swap = BlockChange(slot=Slot(0), index=1, block=BlockId(20))
    with pytest.raises(InvariantBroken, match="block 20 does not hold token 4"):
        steps.run(changes=[swap], works=[work(9, 10)])


def test_what_was_never_computed_shows_even_without_verifying() -> None:
    steps = Steps(verify=False)
    with pytest.raises(InvariantBroken, match="token 3 was never computed"):
        steps.run(starts=[start(0, PROMPT, [5, 6, 7])], works=[work(4, 10)])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (work(4, 11), r"tokens \[4, 11\) are not known"),
        (work(0, 8, sample=True), "samples at 8, before the last token"),
        (work(0, 10), "no block for token 9"),
    ],
)
def test_work_that_cannot_be_is_refused(wrong: SequenceWork, message: str) -> None:
    with pytest.raises(InvariantBroken, match=message):
        Steps().run(starts=[start(0, PROMPT, [5, 6])], works=[wrong])
