from __future__ import annotations

import tempfile
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from keepwarm.chat.tokenizer import Tokenizer, load_tokenizer
from keepwarm.core.errors import BadModel
from tests.chat.tiny import CHATML, byte_level, gguf_of_byte_level, write_gguf

_TEXTS = st.text(
    alphabet=st.one_of(st.characters(codec="utf-8"), st.sampled_from(" \n0123abcthe")), max_size=40
)


def test_a_byte_level_file_gives_the_tokenizer_it_was_made_of(tmp_path: Path) -> None:
    backend = byte_level(plain=("<think>",))
    tokenizer = load_tokenizer(str(gguf_of_byte_level(tmp_path / "a.gguf", backend)))
    text = "The cache <think> reads, 12345 🙂\n\n  twice."
    assert tokenizer.encode(text).tolist() == backend.encode(text).ids
    assert tokenizer.stop_tokens == (2, 0)
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.chat_template == CHATML
    assert tokenizer.max_position == 512
    assert tokenizer.vocab_size == backend.get_vocab_size()


def test_smollm_cuts_numbers_into_digits_and_space_away_from_them(tmp_path: Path) -> None:
    backend = byte_level()
    tokenizer = load_tokenizer(
        str(gguf_of_byte_level(tmp_path / "a.gguf", backend, tokenizer__ggml__pre="smollm"))
    )
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    for text in ("x = 12345", "    7", "a1b22\n\n3", "١٢ ²"):
        assert tokenizer.encode(text).tolist() == backend.encode(text).ids


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("llama-bpe", "It'S 12345 x\n\n y", ["It", "'S", " ", "123", "45", " x", "\n\n", " y"]),
        ("qwen2", "it's 123 !\n", ["it", "'s", " ", "1", "2", "3", " !\n"]),
        ("gpt-2", "it's 123\n x", ["it", "'s", " 123", "\n", " x"]),
        ("tekken", "HelloWorld 12", ["Hello", "World", " ", "1", "2"]),
        ("gpt-4o", "HelloWorld's 1234", ["Hello", "World's", " ", "123", "4"]),
    ],
)
def test_each_way_of_cutting_cuts_as_its_models_do(
    tmp_path: Path, pre: str, text: str, pieces: list[str]
) -> None:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    cut = [piece.replace(" ", "Ġ").replace("\n", "Ċ") for piece in pieces]
    longer = [word[:n] for word in cut for n in range(2, len(word) + 1)]
    tokens = list(dict.fromkeys([*letters, *longer, "xĊ", "Ġ1", "12345", "'"]))
    merges = list(dict.fromkeys(f"{word[:-1]} {word[-1]}" for word in longer))
    path = write_gguf(
        tmp_path / "a.gguf",
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.merges": merges,
        },
    )
    tokenizer = load_tokenizer(str(path))
    assert [tokenizer.token_bytes(t).decode() for t in tokenizer.encode(text).tolist()] == pieces


def _sentencepiece_gguf(path: Path, **changes: Any) -> tuple[Path, dict[str, tuple[int, float]]]:
    words = ["▁the", "the", "▁t", "th", "he", "▁", "t", "h", "e", "a", "b", "ab", "▁a", "ba", "bab", "é"]
    special = ["<unk>", "<s>", "</s>"]
    tokens = special + [f"<0x{byte:02X}>" for byte in range(256)] + words
    scores = [0.0] * 259 + [-float(n) for n in (3, 4, 2, 1, 5, 90, 91, 92, 93, 94, 95, 6, 7, 6, 8, 96)]
    types = [2, 3, 3] + [6] * 256 + [1] * len(words)
    values: dict[str, Any] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **{key.replace("__", "."): value for key, value in changes.items()},
    }
    write_gguf(path, {key: value for key, value in values.items() if value is not None}, types)
    return path, {tokens[n]: (n, scores[n]) for n in range(259, len(tokens))}


def _join_best_pairs(text: str, vocab: dict[str, tuple[int, float]]) -> list[int]:
    """SentencePiece BPE, the slow way: always the neighbours whose whole has the best score."""
    pieces = list(text.replace(" ", "▁"))
    while True:
        wholes = [(vocab[a + b][1], -n) for n, (a, b) in enumerate(pairwise(pieces)) if a + b in vocab]
        if not wholes:
            break
        at = -max(wholes)[1]
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
    return [
        token
        for piece in pieces
        for token in ([vocab[piece][0]] if piece in vocab else [3 + byte for byte in piece.encode()])
    ]


@cache
def _spm(prefix: bool) -> tuple[Tokenizer, dict[str, tuple[int, float]]]:
    with tempfile.TemporaryDirectory() as folder:
        path, vocab = _sentencepiece_gguf(Path(folder) / "a.gguf", tokenizer__ggml__add_space_prefix=prefix)
        return load_tokenizer(str(path)), vocab


@pytest.mark.parametrize("prefix", [True, False])
@given(text=st.text(alphabet="theab é🙂\n", max_size=16))
def test_sentencepiece_joins_as_scores_say(prefix: bool, text: str) -> None:
    tokenizer, vocab = _spm(prefix)
    expected = _join_best_pairs((" " if prefix and text else "") + text, vocab)
    assert tokenizer.encode(text).tolist() == expected
    assert tokenizer.decode(expected) == text


def test_sentencepiece_says_its_opening_and_stop_tokens(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(_sentencepiece_gguf(tmp_path / "a.gguf")[0]))
    assert (tokenizer.bos_token, tokenizer.adds_bos, tokenizer.stop_tokens) == ("<s>", True, (2,))
    assert tokenizer.chat_template is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer__ggml__tokens": None}, "lacks tokenizer.ggml.tokens"),
        ({"tokenizer__ggml__merges": None}, "lacks tokenizer.ggml.merges"),
        ({"tokenizer__ggml__model": None}, "lacks tokenizer.ggml.model"),
        ({"tokenizer__ggml__model": "bert"}, "'bert'; supported are 'gpt2' and 'llama'"),
        ({"tokenizer__ggml__pre": "martian"}, "'martian'; supported are"),
        ({"tokenizer__ggml__merges": ["a b c"]}, "'a b c', which is no pair"),
        ({"tokenizer__ggml__merges": ["qqq zzz"]}, "tokens and merges do not fit"),
        ({"tokenizer__ggml__eos_token_id": 10**6}, "eos_token_id is 1000000"),
        ({"tokenizer__ggml__tokens": ["a"]}, r"1 tokens but \d+ in tokenizer.ggml.token_type"),
    ],
)
def test_what_is_missing_or_wrong_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = gguf_of_byte_level(tmp_path / "a.gguf", byte_level(), **change)
    with pytest.raises(BadModel, match=message):
        load_tokenizer(str(path))


def test_a_path_with_nothing_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match=r"nowhere: no such file or folder"):
        load_tokenizer(str(tmp_path / "nowhere"))
