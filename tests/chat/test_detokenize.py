from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepwarm.chat.detokenize import Detokenizer
from keepwarm.chat.tokenizer import Tokenizer
from tests.chat.tiny import byte_level, sentencepiece, tokenizer_of

_TOKENIZERS = {
    "byte level": tokenizer_of(byte_level()),
    "sentencepiece": tokenizer_of(sentencepiece(prefix=True)),
    "sentencepiece without prefix": tokenizer_of(sentencepiece(prefix=False)),
}
_BACKENDS = {
    "byte level": byte_level(),
    "sentencepiece": sentencepiece(prefix=True),
    "sentencepiece without prefix": sentencepiece(prefix=False),
}
_NAMES = sorted(_TOKENIZERS)
_TEXTS = st.text(
    alphabet=st.one_of(st.characters(codec="utf-8"), st.sampled_from(" \nabc你🙂é▁")), max_size=40
)


def _stream(tokenizer: Tokenizer, tokens: list[int], cut: random.Random) -> str:
    detokenizer = Detokenizer(tokenizer)
    text, at = "", 0
    while at < len(tokens):
        size = cut.randint(1, 3)
        text += detokenizer.add(tokens[at : at + size])
        at += size
    return text + detokenizer.flush()


@pytest.mark.parametrize("name", _NAMES)
@given(text=_TEXTS, seed=st.integers(0, 1000))
def test_the_pieces_joined_equal_the_whole_and_the_librarys_own_decoding(
    name: str, text: str, seed: int
) -> None:
    tokenizer = _TOKENIZERS[name]
    tokens = _BACKENDS[name].encode(text, add_special_tokens=False).ids
    assert _stream(tokenizer, tokens, random.Random(seed)) == tokenizer.decode(tokens)
    assert tokenizer.decode(tokens) == _BACKENDS[name].decode(tokens)


@pytest.mark.parametrize("name", _NAMES)
@given(tokens=st.lists(st.integers(0, 650), max_size=40), seed=st.integers(0, 1000))
def test_any_tokens_at_all_come_out_as_their_whole_would(name: str, tokens: list[int], seed: int) -> None:
    tokenizer = _TOKENIZERS[name]
    assert _stream(tokenizer, tokens, random.Random(seed)) == tokenizer.decode(tokens)


@given(tokens=st.lists(st.integers(0, 599), max_size=40))
def test_byte_level_garbage_decodes_as_the_library_decodes_it(tokens: list[int]) -> None:
    assert _TOKENIZERS["byte level"].decode(tokens) == _BACKENDS["byte level"].decode(tokens)


@pytest.mark.parametrize("name", _NAMES)
def test_an_unfinished_character_is_held_back_and_flushed_as_a_replacement(name: str) -> None:
    tokenizer = _TOKENIZERS[name]
    tokens = _BACKENDS[name].encode("x𓀀", add_special_tokens=False).ids
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.add(tokens[:-1]) == "x"
    assert detokenizer.holds_bytes
    assert detokenizer.flush() == "\ufffd"
    assert not detokenizer.holds_bytes


def test_special_tokens_have_no_text_and_unknown_ids_neither() -> None:
    tokenizer = _TOKENIZERS["byte level"]
    hello = tokenizer.encode("hello").tolist()
    assert Detokenizer(tokenizer).add([1, *hello, 2, 10**6]) == "hello"
