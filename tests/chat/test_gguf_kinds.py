"""Each way of cutting text that a GGUF file can name, and SentencePiece joined by scores."""

from __future__ import annotations

import tempfile
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from keepwarm.chat.tokenizer import Tokenizer, load_tokenizer
from tests.chat.tiny_tokenizers import write_gguf


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
    scores = [0.0] * 259 + [-float(n) for n in (3, 4, 2, 1, 5, 90, 91, 92, 93, 94, 95, 6, 7, 6.5, 8, 96)]
    types = [2, 3, 3] + [6] * 256 + [1] * len(words)
    values: dict[str, Any] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **{key.replace("__", "."): value for key, value in changes.items()},
    }
    write_gguf(path, values)
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
@settings(deadline=None, max_examples=50)
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
