"""The prefix cache by itself: hits, sharing, eviction order, refusal without change."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from keepwarm.cache.prefix import Holding, PrefixCache
from keepwarm.core.errors import InvariantBroken
from keepwarm.core.ids import BlockHash, BlockId, BlockIds
from keepwarm.core.layout import CacheLayout, LayerGroup

FULL = LayerGroup(kind="full", num_layers=2, window_tokens=None, bytes_per_token=16)
STATE = LayerGroup(kind="state", num_layers=1, window_tokens=None, bytes_per_token=0)
SIZE = 4


def make_cache(num_blocks: int = 8, *groups: LayerGroup) -> PrefixCache:
    return PrefixCache(CacheLayout(block_size=SIZE, groups=groups or (FULL,)), num_blocks)


def names_of(path: str) -> list[BlockHash]:
    """One name a prefix of `path`, so that a name's parent is its path less one letter."""
    return [BlockHash(path[: n + 1].encode()) for n in range(len(path))]


def hold(cache: PrefixCache, path: str) -> Holding:
    """Acquire and publish a whole path."""
    tokens = len(path) * SIZE
    holding = cache.acquire(names_of(path), num_tokens=tokens, max_cached_tokens=tokens)
    assert holding is not None
    assert cache.publish(holding, names_of(path)[holding.num_named :]) == []
    return holding


def test_a_released_prefix_is_found_again_without_copying() -> None:
    cache = make_cache()
    holding = hold(cache, "abc")
    blocks = holding.blocks.tolist()
    cache.release(holding)
    again = cache.acquire(names_of("abcd"), num_tokens=4 * SIZE, max_cached_tokens=99)
    assert again is not None
    assert again.blocks[:3].tolist() == blocks
    assert again.num_cached_blocks == 3


def test_an_unpublished_block_is_never_shared() -> None:
    cache = make_cache()
    cache.acquire(names_of("ab"), num_tokens=2 * SIZE, max_cached_tokens=99)
    assert cache.match(names_of("ab"), max_tokens=99) == 0


def test_leaves_are_evicted_before_roots() -> None:
    cache = make_cache(4)
    cache.release(hold(cache, "abcd"))
    cache.acquire([], num_tokens=2 * SIZE, max_cached_tokens=0)
    assert cache.match(names_of("abcd"), max_tokens=99) == 2


def test_who_listens_is_told_of_an_eviction_while_the_blocks_have_their_names() -> None:
    told: list[tuple[list[BlockHash], str]] = []

    def listen(blocks: BlockIds, names: list[BlockHash], reason: str) -> None:
        assert cache.names_of(blocks) == names
        told.append((names, reason))

    cache = make_cache(4)
    cache.on_evict = listen
    cache.release(hold(cache, "abc"))
    cache.acquire([], num_tokens=SIZE, max_cached_tokens=0)
    assert told == []
    cache.acquire([], num_tokens=2 * SIZE, max_cached_tokens=0)
    assert told == [([BlockHash(b"abc"), BlockHash(b"ab")], "room")]
    cache.clear()
    assert told[1:] == [([BlockHash(b"a")], "cleared")]


def test_who_listens_may_hold_what_stands_before() -> None:
    kept: list[Holding] = []

    def listen(blocks: BlockIds, names: list[BlockHash], reason: str) -> None:
        acquired = cache.acquire_after(BlockHash(b"ab"), ())
        assert acquired is not None
        kept.append(acquired[0])

    cache = make_cache(4)
    cache.on_evict = listen
    cache.release(hold(cache, "abcd"))
    taken = cache.acquire([], num_tokens=2 * SIZE, max_cached_tokens=0)
    assert taken is not None
    cache.check([*taken.blocks.tolist(), *kept[0].blocks.tolist()])
    assert cache.acquire([], num_tokens=SIZE, max_cached_tokens=0) is None
    cache.release(kept[0])
    cache.check(taken.blocks)


def test_a_trimmed_holding_gives_back_only_what_has_no_name() -> None:
    cache = make_cache()
    holding = cache.acquire(names_of("abc"), num_tokens=5 * SIZE, max_cached_tokens=0)
    assert holding is not None
    cache.publish(holding, names_of("abc"))
    cache.trim(holding)
    assert len(holding.blocks) == 3
    cache.check(holding.blocks)
    cache.release(holding)
    assert cache.match(names_of("abc"), max_tokens=99) == 3


def test_the_least_recently_used_path_goes_first() -> None:
    cache = make_cache(4)
    cache.release(hold(cache, "ab"))
    cache.release(hold(cache, "xy"))
    cache.release(hold(cache, "ab"))
    cache.acquire([], num_tokens=2 * SIZE, max_cached_tokens=0)
    assert cache.match(names_of("ab"), max_tokens=99) == 2
    assert cache.match(names_of("xy"), max_tokens=99) == 0


def test_no_room_is_an_answer_and_changes_nothing() -> None:
    cache = make_cache(4)
    cache.release(hold(cache, "ab"))
    before = cache.occupancy()
    assert cache.acquire(names_of("abcdefg"), num_tokens=7 * SIZE, max_cached_tokens=99) is None
    assert cache.occupancy() == before
    holding = hold(cache, "abcd")
    assert cache.extend(holding, 1) is None


def test_a_hit_is_not_evicted_to_make_room_for_the_rest_of_its_own_prompt() -> None:
    cache = make_cache(4)
    cache.release(hold(cache, "ab"))
    holding = cache.acquire(names_of("abcd"), num_tokens=4 * SIZE, max_cached_tokens=99)
    assert holding is not None
    assert len(set(holding.blocks)) == 4


def test_who_publishes_second_takes_the_first_ones_block() -> None:
    cache = make_cache()
    first = cache.acquire(names_of("ab"), num_tokens=2 * SIZE, max_cached_tokens=99)
    second = cache.acquire(names_of("ab"), num_tokens=2 * SIZE, max_cached_tokens=99)
    assert first is not None
    assert second is not None
    cache.publish(first, names_of("ab"))
    replacements = cache.publish(second, names_of("ab"))
    assert first.blocks.tolist() == second.blocks.tolist()
    assert [replacement.new for replacement in replacements] == first.blocks.tolist()
    cache.check([*first.blocks, *second.blocks, *(r.old for r in replacements)])
    for replacement in replacements:
        cache.drop(replacement.old)
    assert cache.occupancy().held == 2


def test_a_model_with_states_has_no_hits() -> None:
    cache = make_cache(8, FULL, STATE)
    hold(cache, "ab")
    assert cache.match(names_of("ab"), max_tokens=99) == 0


def test_clear_forgets_what_nobody_holds() -> None:
    cache = make_cache()
    cache.release(hold(cache, "abc"))
    kept = hold(cache, "x")
    assert cache.clear() == 3
    assert cache.match(names_of("x"), max_tokens=99) == 1
    cache.check(kept.blocks)


def test_releasing_twice_is_our_own_mistake() -> None:
    cache = make_cache()
    with pytest.raises(InvariantBroken, match="block 0 released"):
        cache.drop(BlockId(0))


def test_the_check_sees_a_lost_reference() -> None:
    cache = make_cache()
    hold(cache, "a")
    with pytest.raises(InvariantBroken, match="1 references, 0 holders"):
        cache.check([])


def test_releasing_a_holding_twice_gives_back_nothing_more() -> None:
    cache = make_cache()
    kept, holding = hold(cache, "ab"), hold(cache, "ab")
    cache.release(holding)
    cache.release(holding)
    cache.check(kept.blocks)


def test_a_holding_that_lost_a_block_on_the_way_is_our_own_mistake() -> None:
    cache = make_cache()
    holding = hold(cache, "ab")
    cache.drop(BlockId(int(holding.blocks[1])))
    with pytest.raises(InvariantBroken, match="block 1 released more often than held"):
        cache.release(holding)


def test_names_that_are_no_chain_are_our_own_mistake() -> None:
    cache = make_cache()
    hold(cache, "abc")
    with pytest.raises(InvariantBroken, match="name 0 of a prefix belongs to its block 2"):
        cache.acquire([BlockHash(b"abc")], num_tokens=2 * SIZE, max_cached_tokens=99)


def test_a_hit_looks_up_few_of_its_names() -> None:
    cache = make_cache(2_000)
    path = "a" * 1_000
    cache.release(hold(cache, path))
    names = CountedNames(names_of(path))
    assert cache.acquire(names, num_tokens=1_001 * SIZE, max_cached_tokens=1_001 * SIZE) is not None
    assert names.num_asked <= 12


class CountedNames(list[BlockHash]):
    num_asked = 0

    def __getitem__(self, index: Any) -> Any:
        self.num_asked += 1
        return super().__getitem__(index)


def test_the_check_sees_a_name_that_points_elsewhere() -> None:
    cache = make_cache()
    holding = hold(cache, "ab")
    cache._by_name[BlockHash(b"a")] = BlockId(1)
    with pytest.raises(InvariantBroken, match="is not found by its name"):
        cache.check(holding.blocks)


def test_the_check_sees_a_block_with_another_name() -> None:
    cache = make_cache()
    holding = hold(cache, "ab")
    cache._names[1] = BlockHash(b"x")
    with pytest.raises(InvariantBroken, match="name 6162 points at block 1, which has another"):
        cache.check(holding.blocks)


def test_the_check_sees_a_block_that_is_held_and_cached() -> None:
    cache = make_cache()
    holding = hold(cache, "ab")
    cache._evictable.add(holding.blocks[1:])
    with pytest.raises(InvariantBroken, match="the eviction queue miscounts"):
        cache.check(holding.blocks)


class AnyHistory(RuleBasedStateMachine):
    """Holdings come, grow, publish and go in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = make_cache(12)
        self.open: list[tuple[Holding, list[BlockHash]]] = []

    @rule(path=st.text("ab", min_size=1, max_size=6), more=st.integers(0, 3))
    def acquire(self, path: str, more: int) -> None:
        tokens = (len(path) + more) * SIZE
        holding = self.cache.acquire(names_of(path), num_tokens=tokens, max_cached_tokens=tokens)
        if holding is not None:
            assert len(set(holding.blocks)) == len(path) + more
            self.open.append((holding, names_of(path)))

    @precondition(lambda self: self.open)
    @rule(pick=st.randoms(use_true_random=False), count=st.integers(1, 6))
    def publish(self, pick: st.DataObject, count: int) -> None:
        holding, names = pick.choice(self.open)  # type: ignore[attr-defined]
        for replacement in self.cache.publish(holding, names[holding.num_named :][:count]):
            self.cache.drop(replacement.old)

    @precondition(lambda self: self.open)
    @rule(pick=st.randoms(use_true_random=False), count=st.integers(1, 3))
    def extend(self, pick: st.DataObject, count: int) -> None:
        holding, _names = pick.choice(self.open)  # type: ignore[attr-defined]
        self.cache.extend(holding, count)

    @precondition(lambda self: self.open)
    @rule(index=st.integers(0, 99))
    def release(self, index: int) -> None:
        holding, _names = self.open.pop(index % len(self.open))
        self.cache.release(holding)

    @invariant()
    def everything_is_accounted_for(self) -> None:
        self.cache.check([block for holding, _names in self.open for block in holding.blocks])
        occupancy = self.cache.occupancy()
        assert occupancy.held + occupancy.cached + occupancy.empty == 12

    @invariant()
    def every_named_blocks_parent_is_named(self) -> None:
        named = self.cache._by_name
        assert all(len(name) == 1 or name[:-1] in named for name in named)


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
