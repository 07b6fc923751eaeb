from __future__ import annotations

from keepwarm.chat.memo import BoundedMemo


def test_what_was_least_recently_used_goes_first() -> None:
    memo: BoundedMemo[str, int] = BoundedMemo(max_bytes=20)
    memo.put("a", 1, 10)
    memo.put("b", 2, 10)
    assert memo.get("a") == 1
    memo.put("c", 3, 10)
    assert (memo.get("a"), memo.get("b"), memo.get("c")) == (1, None, 3)
    assert memo.held_bytes == 20


def test_a_new_value_takes_the_old_ones_place_and_bytes() -> None:
    memo: BoundedMemo[str, int] = BoundedMemo(max_bytes=20)
    memo.put("a", 1, 15)
    memo.put("a", 2, 5)
    assert (memo.get("a"), memo.held_bytes, len(memo)) == (2, 5, 1)


def test_what_is_larger_than_the_memory_is_not_kept() -> None:
    memo: BoundedMemo[str, int] = BoundedMemo(max_bytes=20)
    memo.put("a", 1, 21)
    assert memo.get("a") is None
    assert memo.held_bytes == 0
