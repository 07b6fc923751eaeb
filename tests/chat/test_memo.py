"""A bounded memory stays bounded and forgets the least recently used."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepwarm.chat.memo import BoundedMemo


def test_the_least_recently_used_is_forgotten_first() -> None:
    memo: BoundedMemo[str, int] = BoundedMemo(max_bytes=2)
    memo.put("old", 1, 1)
    memo.put("new", 2, 1)
    assert memo.get("old") == 1

    memo.put("newest", 3, 1)

    assert (memo.get("old"), memo.get("new"), memo.get("newest")) == (1, None, 3)


def test_what_is_larger_than_the_whole_pushes_nothing_out() -> None:
    memo: BoundedMemo[str, int] = BoundedMemo(max_bytes=10)
    memo.put("small", 1, 4)

    memo.put("huge", 2, 11)

    assert memo.get("huge") is None
    assert memo.get("small") == 1


def test_a_value_replaced_by_one_too_large_is_gone() -> None:
    memo: BoundedMemo[str, int] = BoundedMemo(max_bytes=10)
    memo.put("key", 1, 4)

    memo.put("key", 2, 11)

    assert memo.get("key") is None
    assert memo.held_bytes == 0


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 12)), max_size=40))
def test_the_bytes_held_are_those_of_the_entries_and_never_more_than_allowed(
    puts: list[tuple[int, int]],
) -> None:
    memo: BoundedMemo[int, int] = BoundedMemo(max_bytes=20)
    sizes: dict[int, int] = {}

    for key, num_bytes in puts:
        memo.put(key, num_bytes, num_bytes)
        sizes[key] = num_bytes
        held = [key for key in sizes if memo.get(key) is not None]
        assert memo.held_bytes == sum(sizes[key] for key in held) <= 20
        assert len(memo) == len(held)


@pytest.fixture
def eager_switches() -> Iterator[None]:
    """Threads take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("eager_switches")
def test_threads_that_put_the_same_keys_leave_no_bytes_behind() -> None:
    memo: BoundedMemo[int, int] = BoundedMemo(max_bytes=50)

    def churn(seed: int) -> None:
        for number in range(20_000):
            key = (number * 7 + seed) % 9
            memo.put(key, number, key)
            if number % 5 == 0:
                memo.drop(key)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(churn, range(4)))

    assert memo.held_bytes == sum(key for key in range(9) if memo.get(key) is not None)
