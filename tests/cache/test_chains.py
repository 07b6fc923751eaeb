"""Chains of named blocks: a path from any block, forks, and memory that does not grow with turns."""

from __future__ import annotations

import pytest

from keepwarm.cache.chains import Chains
from keepwarm.core.errors import InvariantBroken
from keepwarm.core.ids import BlockId, block_ids


def test_the_path_to_a_fork_ends_with_its_own_blocks() -> None:
    chains = Chains(20)
    chains.append(None, block_ids([7, 8, 9]))
    chains.append(BlockId(9), block_ids([12, 13]))
    chains.append(BlockId(8), block_ids([3, 4]))
    assert chains.path(BlockId(12)).tolist() == [7, 8, 9, 12]
    assert chains.path(BlockId(4)).tolist() == [7, 8, 3, 4]
    chains.check()


def test_after_leaves_are_gone_their_place_is_taken_by_others() -> None:
    chains = Chains(20)
    chains.append(None, block_ids([7, 8, 9]))
    chains.remove(block_ids([9, 8]))
    chains.append(BlockId(7), block_ids([9, 1]))
    assert chains.path(BlockId(1)).tolist() == [7, 9, 1]
    chains.check()


def test_turns_that_each_leave_the_last_one_s_end_keep_one_entry_a_block() -> None:
    num_turns, new, dead = 500, 20, 2
    chains = Chains(num_turns * (new + dead))
    kept, parent = list[int](), None
    for turn in range(num_turns):
        first = turn * (new + dead)
        chains.append(parent, block_ids(range(first, first + new + dead)))
        kept += range(first, first + new)
        parent = BlockId(first + new - 1)  # the last blocks of each turn do not come back
    assert parent is not None
    assert chains.path(parent).tolist() == kept
    chains.check()
    arrays = [chain.blocks for chain in chains._chains.values()]
    copies = [chain.before for chain in chains._chains.values() if chain.num_slices == 2]
    assert sum(map(len, arrays)) == num_turns * (new + dead)
    assert len(copies) < num_turns / 25


def test_a_child_of_a_block_without_a_name_is_our_own_mistake() -> None:
    with pytest.raises(InvariantBroken, match="block 3 gets a named child"):
        Chains(4).append(BlockId(3), block_ids([1]))


def test_the_check_sees_a_parent_that_left_before_its_child() -> None:
    chains = Chains(8)
    chains.append(None, block_ids([1, 2]))
    chains.append(BlockId(1), block_ids([3]))
    chains.append(BlockId(1), block_ids([4]))
    chains.remove(block_ids([1, 2]))
    with pytest.raises(InvariantBroken, match="lost the blocks before it"):
        chains.check()
