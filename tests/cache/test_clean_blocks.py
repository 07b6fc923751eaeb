"""Which blocks need not be copied down."""

from __future__ import annotations

from keepwarm.cache.clean_blocks import CleanBlocks
from keepwarm.core.ids import block_ids


def test_the_first_dirty_one_of_a_prefix_is_found() -> None:
    clean = CleanBlocks(8)
    path = block_ids([5, 2, 7, 1])
    assert clean.first_dirty(path) == 0
    clean.add(block_ids([5, 2, 1]))
    assert clean.first_dirty(path) == 2
    assert clean.dirty(path).tolist() == [7]
    clean.add(block_ids([7]))
    assert clean.first_dirty(path) == len(path)
    assert clean.first_dirty(block_ids([])) == 0


def test_a_block_that_holds_something_else_is_dirty_again() -> None:
    clean = CleanBlocks(4)
    clean.add(block_ids([1, 2]))
    clean.remove(block_ids([2]))
    assert clean.mask().nonzero()[0].tolist() == [1]
