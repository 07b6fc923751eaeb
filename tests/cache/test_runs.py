"""Empty blocks come out in as few runs as there are, and none is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from keepwarm.cache.runs import EmptyRuns
from keepwarm.core.ids import BlockId


def test_the_run_after_the_given_block_comes_first() -> None:
    runs = EmptyRuns(10)
    runs.take(10, after=None)
    for block in (0, 1, 2, 6, 7, 8):
        runs.add(BlockId(block))
    assert runs.take(2, after=BlockId(5)) == [6, 7]
    assert runs.take(3, after=BlockId(7)) == [8, 0, 1]


def test_the_smallest_run_that_fits_is_taken() -> None:
    runs = EmptyRuns(10)
    runs.take(10, after=None)
    for block in (1, 2, 5, 6, 7, 9):
        runs.add(BlockId(block))
    assert runs.take(2, after=None) == [1, 2]
    assert runs.take(4, after=None) == [5, 6, 7, 9]
    assert len(runs) == 0


def test_neighbours_join_whatever_the_order() -> None:
    runs = EmptyRuns(4)
    runs.take(4, after=None)
    for block in (0, 3, 1, 2):
        runs.add(BlockId(block))
    assert runs.num_runs == 1
    assert list(runs) == [0, 1, 2, 3]


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 8), st.integers(0, 31))))
def test_taken_and_empty_are_always_everything(steps: list[tuple[bool, int, int]]) -> None:
    runs, taken = EmptyRuns(32), set[int]()
    for is_take, count, number in steps:
        if is_take and count <= len(runs):
            blocks = runs.take(count, after=BlockId(number))
            assert len(blocks) == count
            assert not taken & set(blocks)
            taken |= set(blocks)
        elif not is_take and number in taken:
            taken.remove(number)
            runs.add(BlockId(number))
        assert set(runs) == set(range(32)) - taken
        assert len(runs) == 32 - len(taken)
