"""Empty blocks come out in as few runs as there are, and none is lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepwarm.cache.runs import EmptyRuns
from keepwarm.core.errors import InvariantBroken
from keepwarm.core.ids import BlockId, block_ids


def test_the_run_after_the_given_block_comes_first() -> None:
    runs = EmptyRuns(10)
    runs.take(10, after=None)
    runs.add(block_ids([0, 1, 2, 6, 7, 8]))
    assert runs.take(2, after=BlockId(5)).tolist() == [6, 7]
    assert runs.take(3, after=BlockId(7)).tolist() == [8, 0, 1]


def test_the_smallest_run_that_fits_is_taken() -> None:
    runs = EmptyRuns(10)
    runs.take(10, after=None)
    runs.add(block_ids([9, 1, 2, 5, 7, 6]))
    assert runs.take(2, after=None).tolist() == [1, 2]
    assert runs.take(4, after=None).tolist() == [5, 6, 7, 9]
    assert len(runs) == 0


def test_neighbours_join_whatever_the_order() -> None:
    runs = EmptyRuns(4)
    runs.take(4, after=None)
    for blocks in ([0, 3], [1], [2]):
        runs.add(block_ids(blocks))
    assert runs.num_runs == 1
    assert runs.mask(4).all()


def test_a_block_that_is_empty_twice_is_our_own_mistake() -> None:
    runs = EmptyRuns(4)
    runs.add(block_ids([2]))
    with pytest.raises(InvariantBroken, match="overlap or miscount"):
        runs.mask(4)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 8), st.integers(0, 31))))
def test_taken_and_empty_are_always_everything(steps: list[tuple[bool, int, int]]) -> None:
    runs, taken = EmptyRuns(32), set[int]()
    for is_take, count, number in steps:
        if is_take and count <= len(runs):
            blocks = runs.take(count, after=BlockId(number)).tolist()
            assert len(blocks) == count
            assert not taken & set(blocks)
            taken |= set(blocks)
        elif not is_take:
            given_back = taken & set(range(number, number + count))
            taken -= given_back
            runs.add(block_ids([*given_back]))
        assert np.flatnonzero(runs.mask(32)).tolist() == sorted(set(range(32)) - taken)
        assert len(runs) == 32 - len(taken)
