from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from keepwarm.core.ids import token_ids
from keepwarm.engine.digests import Digester, advance_one

tokens_lists = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=80)


@given(st.integers(0, 2**62 - 1), tokens_lists, st.integers(0, 80))
def test_many_at_once_equal_one_after_the_other(before: int, tokens: list[int], cut: int) -> None:
    expected, digest = [], before
    for token in tokens:
        digest = advance_one(digest, token)
        expected.append(digest)
    digester = Digester()
    whole = digester.advance(before, token_ids(tokens)).tolist()
    assert whole == expected
    if 0 < cut < len(tokens):
        assert digester.advance(whole[cut - 1], token_ids(tokens[cut:])).tolist() == expected[cut:]


def test_a_digest_depends_on_every_earlier_token() -> None:
    digester = Digester()
    one = digester.advance(0, token_ids([1, 2, 3]))
    other = digester.advance(0, token_ids([2, 1, 3]))
    assert not set(one.tolist()) & set(other.tolist())
    assert one.min() >= 0
