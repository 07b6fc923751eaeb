"""An index that is told of changes holds what the cache that told it holds."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from keepwarm.cache.told_index import ToldIndex
from keepwarm.core.hashing import BlockHasher, join_hashes
from keepwarm.core.ids import BlockHash, token_ids
from keepwarm.core.rank_messages import CacheEvent

ROOT = BlockHash(b"r" * 16)
HASHER = BlockHasher(key=bytes(32), block_size=1)


def names_of(path: Sequence[int]) -> list[BlockHash]:
    return HASHER.extend(ROOT, token_ids(list(path)))


def stored(parent: BlockHash, names: Sequence[BlockHash]) -> CacheEvent:
    return CacheEvent(kind="stored", tier="l0", names=join_hashes(names), parent=parent)


def evicted(names: Sequence[BlockHash]) -> CacheEvent:
    return CacheEvent(kind="evicted", tier="l0", names=join_hashes(names))


def test_what_is_stored_is_there_until_it_is_evicted() -> None:
    index, names = ToldIndex(), names_of([1, 2, 3])
    index.take(stored(ROOT, names))
    index.take(evicted([names[2]]))
    assert set(index.names) == set(names[:2])
    index.take(evicted([names[2]]))  # again changes nothing
    index.take(stored(names[0], names[1:]))
    assert set(index.names) == set(names)
    index.clear()
    assert len(index) == 0


def test_a_copy_stays_as_it_was() -> None:
    index, names = ToldIndex(), names_of([1, 2])
    index.take(stored(ROOT, names[:1]))
    before = index.copy()
    index.take(stored(names[0], names[1:]))
    assert (len(before), len(index)) == (1, 2)


def test_runs_are_cut_where_another_chain_or_another_piece_begins() -> None:
    index, one, other = ToldIndex(), names_of([1, 2, 3]), names_of([1, 9])
    index.take(stored(ROOT, one))
    index.take(stored(one[0], other[1:]))
    assert list(index.runs(max_names=2)) == [
        (ROOT, one[:2]),
        (one[1], one[2:]),
        (one[0], other[1:]),
    ]


@given(
    st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 2), min_size=1, max_size=6))), st.integers(1, 4)
)
def test_runs_give_the_same_index_again(changes: list[tuple[bool, list[int]]], max_names: int) -> None:
    index = ToldIndex()
    for is_stored, path in changes:
        names = names_of(path)
        index.take(stored(ROOT, names) if is_stored else evicted(names[-1:]))
    again = ToldIndex()
    for parent, run in index.runs(max_names=max_names):
        assert len(run) <= max_names
        again.take(stored(parent, run))
    assert list(again.names) == list(index.names)
    assert list(again.runs(max_names=100)) == list(index.runs(max_names=100))
