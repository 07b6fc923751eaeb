"""Text to ids and back: any text survives, and none of it becomes a control token."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from keepwarm.chat.tokenizer import _ANCHOR, Tokenizer, load_tokenizer
from keepwarm.core.errors import BadModel
from tests.chat.tiny_tokenizers import CHATML, byte_level_backend, write_folder

ANY_TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
PLAIN_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="<>\U0010fffe"), max_size=40)
TRICKY_TEXT = st.lists(
    st.sampled_from(
        ["<|im_start|>", "<|im_end|>", "<|im_", "</s>", "<s>", "<unk>", "<0x41>", _ANCHOR, " ", "\n", "é"]
    ),
    max_size=8,
).map("".join)
several_kinds = settings(
    deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def raw_backend(tokenizer: Tokenizer) -> Backend:
    """The library's own tokenizer from the same file, which finds control tokens in any text."""
    return Backend.from_file(str(Path(tokenizer.origin) / "tokenizer.json"))


@several_kinds
@given(text=ANY_TEXT)
def test_any_text_comes_back_from_its_ids(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@several_kinds
@given(text=PLAIN_TEXT)
def test_ids_of_plain_text_are_the_librarys(tokenizer: Tokenizer, text: str) -> None:
    expected = raw_backend(tokenizer).encode(text, add_special_tokens=False).ids

    assert tokenizer.encode(text).tolist() == expected


@several_kinds
@given(text=TRICKY_TEXT)
def test_text_never_becomes_a_control_token(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text).tolist()

    assert not any(tokenizer.is_special(token) or token >= tokenizer.vocab_size for token in ids)


@several_kinds
@given(text=TRICKY_TEXT)
def test_text_that_spells_control_tokens_comes_back(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@several_kinds
@given(
    text=st.lists(st.one_of(st.sampled_from(["<|im_start|>", "</s>", "\n"]), PLAIN_TEXT), max_size=6).map(
        "".join
    )
)
def test_template_text_is_tokenised_as_the_library_does_with_control_tokens(
    tokenizer: Tokenizer, text: str
) -> None:
    expected = raw_backend(tokenizer).encode(text, add_special_tokens=False).ids

    assert tokenizer.encode_template_text(text).tolist() == expected


def test_control_tokens_have_no_text_when_decoded(chatml: Tokenizer) -> None:
    ids = chatml.encode_template_text("<|im_start|>user\nhello<|im_end|>")

    assert ids[0] == chatml.control_id("<|im_start|>")
    assert chatml.decode(ids) == "user\nhello"


def test_a_whole_token_that_the_template_does_not_write_is_text(chatml: Tokenizer) -> None:
    ids = chatml.encode("<think>")

    assert chatml.control_id("<think>") is None
    assert len(ids) == 1
    assert chatml.decode(ids) == "<think>"


def test_a_whole_token_that_the_template_writes_is_a_control_token_with_text(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, byte_level_backend(), chat_template=CHATML + "<think>")
    tokenizer = load_tokenizer(str(folder))

    token = tokenizer.control_id("<think>")

    assert token is not None
    assert token not in tokenizer.encode("<think>")
    assert tokenizer.encode_template_text("<think>").tolist() == [token]
    assert tokenizer.decode([token]) == "<think>"


def test_a_whole_token_of_one_character_is_left_alone(tmp_path: Path) -> None:
    backend = byte_level_backend()
    backend.add_tokens([AddedToken("∎", normalized=False), AddedToken("<", normalized=False)])
    tokenizer = load_tokenizer(str(write_folder(tmp_path, backend, chat_template=CHATML)))

    assert tokenizer.control.shield("1 < 2", "M") == "1 < 2"
    assert tokenizer.decode(tokenizer.encode("1 < 2 ∎")) == "1 < 2 ∎"


def test_an_id_beyond_the_vocabulary_has_no_text(tokenizer: Tokenizer) -> None:
    beyond = [tokenizer.vocab_size, tokenizer.vocab_size + 1, tokenizer.vocab_size + 1000]

    assert [tokenizer.token_bytes(token) for token in beyond] == [b"", b"", b""]
    assert tokenizer.decode(np.array(beyond)) == ""


def test_bytes_of_a_cut_character_are_kept(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("🎈").tolist()

    assert b"".join(tokenizer.token_bytes(token) for token in ids).endswith("🎈".encode())
    assert "\ufffd" in tokenizer.decode(ids[:-1])


def test_text_after_a_control_token_may_be_spelled_differently_from_an_opening(pieces: Tokenizer) -> None:
    end = pieces.control_id("</s>")
    expected = raw_backend(pieces).encode("</s>hello", add_special_tokens=False).ids

    assert [end, *pieces.encode("hello", after_control_token=True).tolist()] == expected


def test_stop_tokens_are_those_named_and_those_known_by_name(chatml: Tokenizer, pieces: Tokenizer) -> None:
    assert chatml.stop_tokens == (chatml.control_id("<|im_end|>"), chatml.control_id("<|endoftext|>"))
    assert set(chatml.stop_texts()) == {"<|im_end|>", "<|endoftext|>"}
    assert pieces.stop_tokens == (pieces.control_id("</s>"),)


def test_a_path_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match=r"nowhere: no such file or folder"):
        load_tokenizer(str(tmp_path / "nowhere"))


def test_a_tokenizer_that_cannot_generate_text_is_refused(tmp_path: Path) -> None:
    backend = Backend(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = write_folder(tmp_path, backend)

    with pytest.raises(BadModel, match="decoder is missing"):
        load_tokenizer(str(folder))
