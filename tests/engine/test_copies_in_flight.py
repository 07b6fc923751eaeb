from __future__ import annotations

from collections.abc import Sequence

import pytest

from keepwarm.core.errors import InvariantBroken
from keepwarm.core.ids import block_ids
from keepwarm.core.step import BlockCopies, CopyId, StepId, StepPlan
from keepwarm.engine.copies_in_flight import CopiesInFlight
from tests.engine.arenas import copies

NUM_BLOCKS = 8
NUM_SLOTS = 4
NONE = block_ids([])


def in_flight(*begun: BlockCopies) -> CopiesInFlight:
    known = CopiesInFlight(NUM_BLOCKS)
    known.use_slots(NUM_SLOTS)
    known.begin(StepPlan(step_id=StepId(1), copies=begun))
    return known


def begin(known: CopiesInFlight, *begun: BlockCopies) -> None:
    known.begin(StepPlan(step_id=StepId(2), copies=begun))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (copies(2, "demote", [1], [1]), "copy 2 where 1 is next"),
        (copies(1, "demote", [], []), "0 blocks and 0 slots"),
        (copies(1, "demote", [1, 2], [1]), "2 blocks and 1 slots"),
        (copies(1, "demote", [8], [1]), "block 8 of 8"),
        (copies(1, "demote", [-1], [1]), "block -1 of 8"),
        (copies(1, "promote", [1], [4]), "slot 4 of 4"),
        (copies(1, "promote", [1, 1], [2, 3]), "block named twice"),
        (copies(1, "demote", [1, 2], [3, 3]), "slot named twice"),
        (copies(1, "promote", [1], [1], before_works=True), "cannot come before the works"),
    ],
)
def test_a_copy_that_cannot_be_is_refused(wrong: BlockCopies, message: str) -> None:
    with pytest.raises(InvariantBroken, match=message):
        in_flight(wrong)


def test_without_host_memory_every_copy_is_refused() -> None:
    with pytest.raises(InvariantBroken, match="slot 0 of 0"):
        begin(CopiesInFlight(NUM_BLOCKS), copies(1, "demote", [1], [0]))


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (copies(1, "promote", [1], [1]), copies(2, "promote", [1], [2]), "block is being written: 1"),
        (copies(1, "promote", [1], [1]), copies(2, "demote", [1], [2]), "block is being written: 1"),
        (copies(1, "promote", [1], [1]), copies(2, "demote", [2], [1]), "slot is being read: 1"),
        (copies(1, "demote", [1], [1]), copies(2, "promote", [1], [2]), "block is being read: 1"),
        (copies(1, "demote", [1], [1]), copies(2, "promote", [2], [1]), "slot is being written: 1"),
        (copies(1, "demote", [1], [1]), copies(2, "demote", [2], [1]), "slot is being written: 1"),
    ],
)
def test_copies_that_meet_are_refused_until_the_first_is_collected(
    first: BlockCopies, second: BlockCopies, message: str
) -> None:
    known = in_flight(first)
    with pytest.raises(InvariantBroken, match=message):
        begin(known, second)
    known = in_flight(first)
    known.end(first.copy_id)
    begin(known, second)


def test_one_slot_may_be_copied_up_twice_and_one_block_down_twice() -> None:
    known = in_flight(copies(1, "promote", [1], [1]), copies(2, "promote", [2], [1]))
    begin(known, copies(3, "demote", [3], [2]), copies(4, "demote", [3], [3]))
    assert len(known) == 4


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_blocks_copied_down_before_the_works_are_free_for_the_same_plan(order: Sequence[int]) -> None:
    down, up = order
    plan = [
        copies(down, "demote", [1], [1], before_works=True),
        copies(up, "promote", [1], [2]),
        copies(3, "demote", [3], [3], before_works=True),
    ]
    known = in_flight(*sorted(plan, key=lambda copy: copy.copy_id))
    known.check_work("work", read=block_ids([3]), written=block_ids([3]))


def test_works_keep_off_blocks_until_their_copies_are_collected() -> None:
    known = in_flight(copies(1, "promote", [1, 2], [1, 2]), copies(2, "demote", [3], [3]))
    known.check_work("reading what is copied down", read=block_ids([3, 4]), written=block_ids([4]))
    with pytest.raises(InvariantBroken, match="turn, in a block that is being copied up: 2"):
        known.check_work("turn", read=block_ids([0, 2]), written=NONE)
    with pytest.raises(InvariantBroken, match="turn, over a block that is being copied down: 3"):
        known.check_work("turn", read=block_ids([0, 3]), written=block_ids([3]))
    known.end(CopyId(1))
    known.end(CopyId(2))
    known.check_work("turn", read=block_ids([1, 2, 3]), written=block_ids([1, 2, 3]))


def test_host_memory_stays_while_copies_are_in_flight() -> None:
    with pytest.raises(InvariantBroken, match="1 copies in flight"):
        in_flight(copies(1, "promote", [1], [1])).use_slots(9)
