"""Chain hashes: extended is the same as hashed whole; nothing else collides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepwarm.core.hashing import BlockHasher, BlockNames, join_hashes, root_hash
from keepwarm.core.ids import TenantId, token_ids

HASHER = BlockHasher(key=bytes(32), block_size=4)
ROOT = root_hash(bytes(32), TenantId("a"))


@given(st.lists(st.integers(0, 2**31 - 1), max_size=40), st.integers(0, 10))
def test_extending_equals_hashing_the_whole(tokens: list[int], cut_blocks: int) -> None:
    ids = token_ids(tokens)
    whole = HASHER.extend(ROOT, ids)
    cut = min(cut_blocks, len(whole))
    parent = whole[cut - 1] if cut else ROOT
    assert whole[:cut] + HASHER.extend(parent, ids[cut * 4 :]) == whole
    assert len(whole) == len(tokens) // 4


def test_a_name_depends_on_every_earlier_token() -> None:
    one = HASHER.extend(ROOT, token_ids([1, 2, 3, 4, 5, 6, 7, 8]))
    other = HASHER.extend(ROOT, token_ids([9, 2, 3, 4, 5, 6, 7, 8]))
    assert not set(one) & set(other)


def test_tenants_keys_and_extras_have_roots_of_their_own() -> None:
    key, other_key = bytes(32), bytes([1]) * 32
    roots = {
        root_hash(key, TenantId("a")),
        root_hash(key, TenantId("b")),
        root_hash(other_key, TenantId("a")),
        root_hash(key, TenantId("a"), b"model"),
        root_hash(key, TenantId("amodel")),
    }
    assert len(roots) == 5


@given(st.integers(0, 6), st.integers(0, 3), st.slices(9))
def test_names_over_their_joined_bytes_are_a_list_of_them(
    num_joined: int, num_added: int, cut: slice
) -> None:
    names = HASHER.extend(ROOT, token_ids(range((num_joined + num_added) * 4)))
    view = BlockNames(join_hashes(names[:num_joined]))
    view.extend(names[num_joined:])
    assert list(view) == names
    assert [view[index] for index in range(-len(names), len(names))] == names + names
    assert view[cut] == names[cut]
    with pytest.raises(IndexError):
        view[len(names)]
    with pytest.raises(IndexError):
        view[-len(names) - 1]
