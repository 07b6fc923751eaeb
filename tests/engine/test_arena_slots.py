from __future__ import annotations

import numpy as np
import pytest

from keepwarm.core.errors import BadSetting
from keepwarm.core.host_tier import ArenaLayout, HostArena
from keepwarm.core.ids import block_ids
from keepwarm.core.layout import CacheLayout, LayerGroup
from keepwarm.engine.arena_slots import ArenaSlots
from tests.engine.arenas import flip_a_bit, make_arena

LAYOUT = CacheLayout(
    block_size=4, groups=(LayerGroup(kind="full", num_layers=1, window_tokens=None, bytes_per_token=8),)
)


def written(arena: HostArena, slots: list[int]) -> ArenaSlots:
    view = ArenaSlots(arena, LAYOUT, sum_one_in=8)
    ids = block_ids(slots)
    view.rows[ids] = np.arange(len(slots) * 32, dtype=np.uint8).reshape(-1, 32)
    view.store_sums(ids, view.summed(ids))
    return view


def sums(arena: HostArena) -> list[int]:
    return [
        int(value) for value in np.frombuffer(arena.memory, dtype=np.uint64, count=arena.layout.num_slots)
    ]


def test_one_slot_in_so_many_the_first_and_the_last_of_a_copy_are_summed() -> None:
    arena = make_arena(LAYOUT, num_slots=32)
    written(arena, [5, *range(7, 20), 3, 2])
    assert [slot for slot, value in enumerate(sums(arena)) if value] == [2, 5, 8, 16]


def test_a_slot_written_again_loses_its_sum() -> None:
    arena = make_arena(LAYOUT)
    written(arena, [5])
    assert sums(arena)[5]
    view = written(arena, [4, 5, 6])
    assert sums(arena)[5] == 0
    assert view.are_sound(block_ids([4, 5, 6]))


@pytest.mark.parametrize("offset", [0, 31])
def test_a_flipped_bit_of_a_summed_slot_shows_and_of_another_does_not(offset: int) -> None:
    arena = make_arena(LAYOUT)
    view = written(arena, [1, 2, 3])
    flip_a_bit(arena, 2, offset=offset)
    assert view.are_sound(block_ids([1, 2, 3]))
    flip_a_bit(arena, 3, offset=offset)
    assert view.are_sound(block_ids([1, 2]))
    assert not view.are_sound(block_ids([3]))


def test_the_sums_are_seen_through_another_mapping_of_the_same_memory() -> None:
    arena = make_arena(LAYOUT)
    written(arena, [1])
    other = ArenaSlots(HostArena(memory=memoryview(arena.memory), layout=arena.layout), LAYOUT)
    assert other.are_sound(block_ids([1]))
    flip_a_bit(arena, 1)
    assert not other.are_sound(block_ids([1]))


def test_memory_cut_for_other_blocks_is_refused_with_both_sizes() -> None:
    cut = ArenaLayout(num_slots=2, slot_bytes=48)
    arena = HostArena(memory=memoryview(bytearray(cut.total_bytes)), layout=cut)
    with pytest.raises(BadSetting, match=r"slots of 48 bytes.*--block-size 4\) has 32"):
        ArenaSlots(arena, LAYOUT)


def test_too_little_memory_and_memory_that_cannot_be_written_are_refused() -> None:
    cut = ArenaLayout(num_slots=2, slot_bytes=32)
    short = HostArena(memory=memoryview(bytearray(100)), layout=cut)
    with pytest.raises(BadSetting, match="2 slots need 4160 bytes of host memory, and 100 are mapped"):
        ArenaSlots(short, LAYOUT)
    fixed = HostArena(memory=memoryview(bytes(cut.total_bytes)), layout=cut)
    with pytest.raises(BadSetting, match="read-only"):
        ArenaSlots(fixed, LAYOUT)
