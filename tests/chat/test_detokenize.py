"""Text that comes token by token is the text of all tokens, and never half a character."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keepwarm.chat.detokenize import Detokenizer
from keepwarm.chat.tokenizer import Tokenizer


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=st.data())
def test_pieces_joined_are_the_whole_whatever_the_tokens(tokenizer: Tokenizer, drawn: st.DataObject) -> None:
    tokens = drawn.draw(st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=30))
    cuts = sorted(drawn.draw(st.lists(st.integers(0, len(tokens)), max_size=4)))
    detokenizer = Detokenizer(tokenizer)

    added = [
        detokenizer.add(tokens[start:end])
        for start, end in zip([0, *cuts], [*cuts, len(tokens)], strict=True)
    ]

    assert "".join(added) + detokenizer.flush() == tokenizer.decode(tokens)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\ufffd"), max_size=20))
def test_no_piece_of_valid_text_holds_half_a_character(tokenizer: Tokenizer, text: str) -> None:
    detokenizer = Detokenizer(tokenizer)

    added = [detokenizer.add([token]) for token in tokenizer.encode(text).tolist()]

    assert "\ufffd" not in "".join(added)
    assert "".join(added) == text
    assert detokenizer.flush() == ""


def test_an_unfinished_character_is_held_and_then_said_to_be_broken(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer)

    text = detokenizer.add(tokenizer.encode("a🎈").tolist()[:-1])

    assert text == "a"
    assert detokenizer.holds_bytes
    assert detokenizer.flush() == "\ufffd"


@pytest.mark.parametrize("spaces", ["", " ", "  "])
def test_only_the_space_that_the_tokenizer_put_is_taken_away(pieces: Tokenizer, spaces: str) -> None:
    detokenizer = Detokenizer(pieces)

    text = "".join(detokenizer.add([token]) for token in pieces.encode(spaces + "hello hello").tolist())

    assert text == spaces + "hello hello"


def test_control_tokens_add_no_text(chatml: Tokenizer) -> None:
    detokenizer = Detokenizer(chatml)

    assert detokenizer.add([*chatml.encode("hello").tolist(), *chatml.stop_tokens]) == "hello"
