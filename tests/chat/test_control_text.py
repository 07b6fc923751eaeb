from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepwarm.chat.control_text import ControlToken, ControlTokens, unused_characters

_SPELLINGS = ["<|a|>", "<|ab|>", "[X]", "|><|", "</s>", "<s>"]
_CONTROL = ControlTokens({spelling: ControlToken(token_id=n) for n, spelling in enumerate(_SPELLINGS)})
_MARK = chr(0xF0000)
_FRAGMENTS = st.lists(
    st.one_of(
        st.sampled_from(_SPELLINGS),
        st.sampled_from([s[:n] for s in _SPELLINGS for n in range(1, len(s))]),
        st.sampled_from([s[n:] for s in _SPELLINGS for n in range(1, len(s))]),
        st.sampled_from([" ", "\n", "word"]),
    ),
    max_size=8,
).map("".join)


def test_the_longest_control_token_at_a_place_is_found() -> None:
    assert list(_CONTROL.cut("x<|ab|>[X]y")) == ["x", 1, 2, "y"]
    assert list(_CONTROL.cut("")) == []


@given(before=_FRAGMENTS, content=_FRAGMENTS, after=_FRAGMENTS)
def test_shielded_content_adds_no_control_token_wherever_it_stands(
    before: str, content: str, after: str
) -> None:
    contents = [_CONTROL.shield(text, _MARK) for text in (before, content, after)]
    text = "<|a|>" + contents[0] + "<" + contents[1].strip() + "[X]" + contents[2] + "s>"
    pieces = list(_CONTROL.cut(text))
    assert [piece for piece in pieces if isinstance(piece, int)] == [0, 2]
    words = "".join(piece for piece in pieces if isinstance(piece, str)).replace(_MARK, "")
    assert words == before + "<" + content.strip() + after + "s>"


def test_ordinary_content_is_left_as_it_is() -> None:
    text = "if a < b and c > d: return [x]"
    assert _CONTROL.shield(text, _MARK) == text


def test_control_tokens_take_white_space_where_they_are_made_to() -> None:
    control = ControlTokens(
        {
            "<l>": ControlToken(token_id=1, strips_left=True),
            "<r>": ControlToken(token_id=2, strips_right=True),
        }
    )
    assert list(control.cut("a \n<l> b<r> \n c")) == ["a", 1, " b", 2, "c"]


def test_marks_are_characters_that_no_text_contains() -> None:
    assert unused_characters(["plain", "has \U000f0000"], 2) == ["\U000f0001", "\U000f0002"]


def test_no_control_tokens_means_nothing_to_find() -> None:
    assert list(ControlTokens({}).cut("<|a|>")) == ["<|a|>"]
    assert ControlTokens({}).shield("<|a|>", _MARK) == "<|a|>"


@pytest.mark.parametrize("text", ["<|a|>x</s>", "<|a|><|a|>", "abc"])
def test_cutting_inside_leaves_no_spelling_whole(text: str) -> None:
    pieces = _CONTROL.cut_inside(text)
    assert "".join(pieces) == text
    assert all(isinstance(found, str) for piece in pieces for found in _CONTROL.cut(piece))
