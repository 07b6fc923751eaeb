"""Blocks of window layers: what is held, where a turn may go on, and what is given up first."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from keepwarm.cache.window_pool import SNAPSHOT_EVERY_WINDOWS, WindowHolding, WindowPool
from keepwarm.core.errors import InvariantBroken
from keepwarm.core.layout import window_blocks
from tests.cache.reference_window_pool import ReferenceHolding, ReferenceWindowPool
from tests.cache.test_prefix import names_of

SIZE, WINDOW = 4, 9  # a window is two blocks
LONG = "abcdefghijklmnopqrstuvwxyz" * 4


def make_pool(num_blocks: int = 200) -> WindowPool:
    return WindowPool(SIZE, WINDOW, num_blocks, max_holdings=8)


def begin(pool: WindowPool, path: str, *, prompt_blocks: int | None = None) -> WindowHolding:
    names = names_of(path)
    hits = pool.resumable(names, len(names))
    prompt = len(path) if prompt_blocks is None else prompt_blocks
    return pool.acquire(names, hits, prompt_tokens=prompt * SIZE)


def compute(pool: WindowPool, holding: WindowHolding, path: str, end: int) -> None:
    """Blocks up to `end`, one after the other, as a turn that decodes."""
    for index in range(holding.end, end):
        pool.extend(holding, 1)
        pool.publish(holding, names_of(path)[index : index + 1])
        pool.advance(holding, (index + 1) * SIZE)


def turn(pool: WindowPool, path: str, *, prompt_blocks: int | None = None) -> int:
    """A whole turn; where it went on."""
    holding = begin(pool, path, prompt_blocks=prompt_blocks)
    hits = holding.num_published
    compute(pool, holding, path, len(path))
    pool.release(holding)
    return hits


@pytest.mark.parametrize(
    ("window_tokens", "expected"), [(1, 0), (2, 1), (5, 1), (6, 2), (9, 2), (10, 3), (512, 128)]
)
def test_a_window_is_the_full_blocks_that_a_blocks_first_token_reads(
    window_tokens: int, expected: int
) -> None:
    assert window_blocks(window_tokens, SIZE) == expected


def test_a_long_sequence_holds_its_window_and_no_more() -> None:
    pool = make_pool(num_blocks=4)
    holding = begin(pool, LONG)
    compute(pool, holding, LONG, len(LONG))
    assert len(holding.blocks) == pool.window_blocks + 1
    pool.check([holding])


def test_a_turn_goes_on_where_the_last_one_ended_or_a_block_earlier() -> None:
    pool = make_pool()
    turn(pool, LONG[:50])
    names = names_of(LONG)
    assert [pool.resumable(names, most) for most in (50, 49)] == [50, 49]


def test_the_end_of_the_prompt_stays_when_the_answer_was_long() -> None:
    pool = make_pool(num_blocks=14)  # what is passed has to go; 12 are snapshots, two at most regular
    turn(pool, LONG[:50], prompt_blocks=20)
    assert [pool.resumable(names_of(LONG), most) for most in (49, 30, 19)] == [49, 20, 19]


def test_what_is_computed_again_is_less_than_the_way_between_two_snapshots() -> None:
    every = SNAPSHOT_EVERY_WINDOWS * 2
    pool = make_pool(num_blocks=15)
    turn(pool, LONG)
    names = names_of(LONG)
    assert pool.snapshot_every == every
    assert all(most - pool.resumable(names, most) < every for most in range(len(LONG)))
    assert [pool.resumable(names, most) for most in (every - 1, every, 2 * every - 1)] == [0, every, every]


def test_a_snapshot_that_a_turn_went_on_from_is_given_up_before_others() -> None:
    pool = make_pool(num_blocks=12)
    turn(pool, "other")
    turn(pool, "mine")
    turn(pool, "minemine")  # goes on from the snapshot of "mine"
    turn(pool, "new")
    assert [pool.resumable(names_of(path), len(path)) for path in ("other", "mine", "minemine")] == [5, 0, 8]


def test_more_sequences_than_it_was_made_for_have_no_room() -> None:
    pool = WindowPool(SIZE, WINDOW, 20, max_holdings=1)
    assert pool.has_room
    holding = begin(pool, LONG)
    assert not pool.has_room
    pool.release(holding)
    assert pool.has_room


def test_a_block_that_was_promised_and_is_not_there_breaks_an_invariant() -> None:
    pool = make_pool(num_blocks=4)
    with pytest.raises(InvariantBroken, match="5 window blocks wanted of 4"):
        pool.extend(begin(pool, LONG), 5)


def test_who_computes_a_block_again_keeps_its_own_and_takes_the_name() -> None:
    pool = make_pool()
    one, other = begin(pool, LONG), begin(pool, LONG)
    compute(pool, one, LONG, 3)
    compute(pool, other, LONG, 3)
    assert set(one.blocks).isdisjoint(other.blocks)
    pool.check([one, other])
    third = begin(pool, LONG[:3])
    assert third.blocks == other.blocks[1:]
    for holding in (one, other, third):
        pool.release(holding)
    pool.check([])


def test_blocks_without_a_name_are_empty_at_once() -> None:
    pool = make_pool()
    holding = begin(pool, LONG)
    pool.extend(holding, 30)
    pool.advance(holding, 29 * SIZE)
    assert pool.num_cached == 0
    pool.release(holding)
    assert pool.num_empty == pool.num_blocks


def test_a_window_of_one_token_is_nothing_to_remember() -> None:
    pool = WindowPool(SIZE, 1, 8, max_holdings=1)
    assert pool.resumable(names_of("abc"), 3) == 3


def test_the_check_sees_a_holding_that_was_lost() -> None:
    pool = make_pool()
    compute(pool, begin(pool, LONG), LONG, 2)
    with pytest.raises(InvariantBroken, match="0 holders"):
        pool.check([])


Open = tuple[WindowHolding, ReferenceHolding, str]

paths = st.text("ab", min_size=1, max_size=60)


class BothPools(RuleBasedStateMachine):
    """Each operation is done to both; beside them stands what each block's memory really holds."""

    @initialize(num_blocks=st.integers(6, 60), window=st.integers(1, 3 * SIZE))
    def start(self, num_blocks: int, window: int) -> None:
        self.pool = WindowPool(SIZE, window, num_blocks, max_holdings=99)
        self.model = ReferenceWindowPool(SIZE, window, num_blocks)
        self.open: list[Open] = []
        self.memory: dict[int, str] = {}

    @rule(path=paths, prompt_blocks=st.integers(1, 60))
    def acquire(self, path: str, prompt_blocks: int) -> None:
        names = names_of(path)
        hits = self.pool.resumable(names, len(names))
        assert hits == self.model.resumable(names, len(names))
        tokens = min(prompt_blocks, len(path)) * SIZE
        ours = self.pool.acquire(names, hits, prompt_tokens=tokens)
        self.open.append((ours, self.model.acquire(names, hits, tokens), path))

    @precondition(lambda self: self.open)
    @rule(index=st.integers(0, 99), count=st.integers(1, 9), unfinished=st.integers(0, 2))
    def compute(self, index: int, count: int, unfinished: int) -> None:
        """A chunk: room for it, its KV, the names of all but the last blocks, what is behind passed."""
        ours, theirs, path = self.open[index % len(self.open)]
        first, end = ours.num_published, min(len(path), ours.num_published + count)
        missing = end - ours.end
        if missing > 0:
            if missing > self.pool.num_empty + self.pool.num_cached:
                return
            self.pool.extend(ours, missing)
            self.model.extend(theirs, end - missing, missing)
        for at in range(first, end):
            self.memory[ours.blocks[at - ours.first]] = path[: at + 1]
        named = names_of(path)[first : max(first, end - unfinished)]
        self.pool.publish(ours, named)
        self.model.publish(theirs, named)
        self.pool.advance(ours, ours.num_published * SIZE)
        self.model.advance(theirs, theirs.num_published * SIZE)

    @precondition(lambda self: self.open)
    @rule(index=st.integers(0, 99))
    def release(self, index: int) -> None:
        ours, theirs, _path = self.open.pop(index % len(self.open))
        self.pool.release(ours)
        self.model.release(theirs)

    @rule()
    def clear(self) -> None:
        self.pool.clear()
        self.model.clear()

    @invariant()
    def both_say_the_same(self) -> None:
        assert self.pool._by_name.keys() == self.model.named.keys()
        assert self.pool.num_empty == self.model.num_empty
        for queue, theirs in ((self.pool._passed, self.model.passed), (self.pool._kept, self.model.kept)):
            assert [self.pool._names[block] for block in queue] == [block.name for block in theirs]
        for ours, model, _path in self.open:
            assert list(range(ours.first, ours.end)) == sorted(model.held)
            assert ours.num_published == model.num_published

    @invariant()
    def what_a_name_or_a_holding_points_at_is_there(self) -> None:
        for name, block in self.pool._by_name.items():
            assert self.memory[block].encode() == name
        for ours, _model, path in self.open:
            for at, block in enumerate(ours.blocks, start=ours.first):
                if at < ours.num_published:
                    assert self.memory[block] == path[: at + 1]

    @invariant()
    def the_check_agrees(self) -> None:
        self.pool.check([ours for ours, _theirs, _path in self.open])


TestBothPools = BothPools.TestCase
TestBothPools.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
