from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest

from keepwarm.core.step import BlockCopies, CopyResult, StepId, StepPlan

pytest.importorskip("torch")

from keepwarm.engine.arena_slots import ArenaSlots
from keepwarm.engine.block_copies import BlockMover, Progress
from keepwarm.engine.copy_threads import CopyThreads
from tests.engine.arenas import copies
from tests.engine.test_block_copies import Blocks

pytestmark = pytest.mark.engine


class HeldMover(BlockMover):
    """Moves two blocks at a time, and only as many pieces as `allow` lets it."""

    def __init__(self) -> None:
        blocks = Blocks()
        super().__init__(blocks.pools.block_parts, ArenaSlots(blocks.arena, blocks.layout))
        self._piece_blocks = 2
        self._allowed = threading.Semaphore(0)
        self._at_work = threading.Semaphore(0)
        self.moved: list[int] = []
        self.fail = False

    def move_piece(self, progress: Progress) -> None:
        self._at_work.release()
        self._allowed.acquire()
        if self.fail:
            raise MemoryError("scripted")
        self.moved.append(progress.copies.copy_id)
        super().move_piece(progress)

    def allow(self, num_pieces: int = 1) -> None:
        for _ in range(num_pieces):
            self._allowed.release()

    def wait_until_at_work(self, num_times: int = 1) -> None:
        for _ in range(num_times):
            assert self._at_work.acquire(timeout=20)


@pytest.fixture
def mover() -> Iterator[HeldMover]:
    mover = HeldMover()
    yield mover
    mover.allow(100)


def plan(step_id: int, begun: Sequence[BlockCopies] = ()) -> StepPlan:
    return StepPlan(step_id=StepId(step_id), copies=begun)


def ids(results: Sequence[CopyResult]) -> list[int]:
    return [result.copy_id for result in results]


def test_a_copy_runs_beside_the_caller_who_waits_only_where_it_is_awaited(mover: HeldMover) -> None:
    threads = CopyThreads(mover)
    threads.begin(plan(1, [copies(1, "demote", [1, 2, 3], [1, 2, 3])]))
    mover.wait_until_at_work()
    assert threads.take(StepId(1), awaited=False) == ()
    mover.allow(2)
    [result] = threads.take(StepId(1), awaited=True)
    assert (result.copy_id, result.is_sound, result.num_bytes) == (
        1,
        True,
        3 * Blocks().layout.bytes_per_block,
    )
    assert threads.take(StepId(2), awaited=True) == ()
    threads.close()


def test_what_is_copied_up_overtakes_what_is_copied_down_piece_by_piece(mover: HeldMover) -> None:
    threads = CopyThreads(mover)
    threads.begin(plan(1, [copies(1, "demote", [1, 2, 3, 4, 5], [1, 2, 3, 4, 5])]))
    mover.wait_until_at_work()
    threads.begin(plan(2, [copies(2, "demote", [6], [6]), copies(3, "promote", [7, 8, 9], [7, 8, 9])]))
    mover.allow(6)
    threads.close()
    assert mover.moved == [1, 3, 3, 1, 1, 2]
    assert ids(threads.take(StepId(2), awaited=False)) == [3, 1, 2]


def test_copies_before_the_works_are_done_on_return_and_before_all_others(mover: HeldMover) -> None:
    threads = CopyThreads(mover)
    mover.allow(1)
    begun = [copies(1, "promote", [3], [3]), copies(2, "demote", [3], [4], before_works=True)]
    threads.begin(plan(1, begun))
    assert mover.moved == [2]
    assert ids(threads.take(StepId(1), awaited=True)) == [2]
    mover.allow(1)
    assert ids(threads.take(StepId(1), awaited=True)) == [1]
    threads.close()


def test_a_result_tells_of_no_copy_of_a_later_plan(mover: HeldMover) -> None:
    threads = CopyThreads(mover)
    mover.allow(2)
    threads.begin(plan(1, [copies(1, "demote", [1], [1])]))
    threads.begin(plan(2, [copies(2, "demote", [2], [2])]))
    threads.close()
    assert ids(threads.take(StepId(1), awaited=True)) == [1]
    assert threads.take(StepId(1), awaited=True) == ()
    assert ids(threads.take(StepId(2), awaited=True)) == [2]


def test_two_threads_copy_at_the_same_time(mover: HeldMover) -> None:
    threads = CopyThreads(mover, num_threads=2)
    threads.begin(plan(1, [copies(1, "demote", [1], [1]), copies(2, "demote", [2], [2])]))
    mover.wait_until_at_work(2)  # one that waited for the other would never be
    mover.allow(2)
    taken = [*threads.take(StepId(1), awaited=True), *threads.take(StepId(1), awaited=True)]
    assert sorted(ids(taken)) == [1, 2]
    threads.close()


def test_closing_waits_for_the_copies_that_run(mover: HeldMover) -> None:
    threads = CopyThreads(mover)
    threads.begin(plan(1, [copies(1, "demote", [1, 2, 3], [1, 2, 3])]))
    mover.wait_until_at_work()
    closing = threading.Thread(target=threads.close)
    closing.start()
    assert closing.is_alive()
    mover.allow(2)
    closing.join(timeout=20)
    assert not closing.is_alive()
    assert mover.moved == [1, 1]


def test_what_a_copy_raises_is_raised_where_its_result_is_collected(mover: HeldMover) -> None:
    threads = CopyThreads(mover)
    mover.fail = True
    mover.allow(1)
    threads.begin(plan(1, [copies(1, "demote", [1], [1])]))
    with pytest.raises(MemoryError, match="scripted"):
        threads.take(StepId(1), awaited=True)
    threads.close()
