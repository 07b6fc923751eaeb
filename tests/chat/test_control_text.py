"""Control tokens are found where they are, and shielded text spells none, alone or beside others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepwarm.chat.control_text import ControlToken, ControlTokens, unused_characters
from keepwarm.core.errors import BadRequest

MARK = "\U000f0000"
SPELLINGS = ["<|a|>", "|a|", "<|ab|>", "<s>", "ss>"]
CONTROL = ControlTokens({text: ControlToken(token_id=number) for number, text in enumerate(SPELLINGS)})
scraps = st.one_of(
    st.text("<|abs> \n>", max_size=12),
    st.lists(st.sampled_from([*SPELLINGS, "<", "|a", " ", "s>"]), max_size=6).map("".join),
)


@given(texts=st.lists(scraps, min_size=1, max_size=4))
def test_shielded_texts_end_to_end_spell_no_control_token(texts: list[str]) -> None:
    joined = "".join(CONTROL.shield(text, MARK) for text in texts)

    assert all(isinstance(piece, str) for piece in CONTROL.cut(joined))
    assert joined.replace(MARK, "") == "".join(texts)


@given(text=scraps, before=st.sampled_from(SPELLINGS), after=st.sampled_from(SPELLINGS))
def test_control_tokens_beside_shielded_text_stay_what_they_are(text: str, before: str, after: str) -> None:
    pieces = list(CONTROL.cut(before + CONTROL.shield(text, MARK) + after))

    assert [piece for piece in pieces if isinstance(piece, int)] == [
        SPELLINGS.index(before),
        SPELLINGS.index(after),
    ]


@given(text=scraps)
def test_what_is_cut_is_the_whole_text(text: str) -> None:
    pieces = [SPELLINGS[piece] if isinstance(piece, int) else piece for piece in CONTROL.cut(text)]

    assert "".join(pieces) == text
    assert "" not in pieces


@given(text=scraps)
def test_pieces_cut_inside_spell_no_control_token(text: str) -> None:
    pieces = CONTROL.cut_inside(text)

    assert "".join(pieces) == text
    assert not any(spelling in piece for piece in pieces for spelling in SPELLINGS)


def test_the_longest_token_at_a_place_counts() -> None:
    control = ControlTokens({"<a": ControlToken(token_id=1), "<ab>": ControlToken(token_id=2)})

    assert list(control.cut("<a<ab><ab")) == [1, 2, 1, "b"]


def test_white_space_beside_a_token_goes_where_the_token_takes_it() -> None:
    control = ControlTokens(
        {
            "[l]": ControlToken(token_id=1, strips_left=True),
            "[r]": ControlToken(token_id=2, strips_right=True),
        }
    )

    assert list(control.cut("a [l] b [r] \n c ")) == ["a", 1, " b ", 2, "c "]


def test_a_model_without_control_tokens_has_only_text() -> None:
    control = ControlTokens({})

    assert list(control.cut("<s>")) == ["<s>"]
    assert control.shield("<s>", MARK) == "<s>"


def test_marks_are_characters_that_no_text_has() -> None:
    assert unused_characters(["a\U000f0000", "\U000f0002"], 2) == ["\U000f0001", "\U000f0003"]


def test_a_conversation_with_every_private_character_is_refused() -> None:
    everything = "".join(map(chr, range(0xF0000, 0xFFFFE)))

    assert unused_characters([everything[:-2]], 2) == list(everything[-2:])
    with pytest.raises(BadRequest, match="every private character"):
        unused_characters([everything], 1)
