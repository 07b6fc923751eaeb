"""A GGUF file's tokenizer gives the ids of the tokenizer it was made from."""

from __future__ import annotations

import json
import mmap
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from keepwarm.chat.tokenizer import Tokenizer, load_tokenizer
from keepwarm.core.errors import BadModel
from keepwarm.core.gguf import parse_gguf_header
from tests.chat.tiny_tokenizers import CHATML, byte_level_backend, pieces_backend, write_gguf

NORMAL, CONTROL, USER_DEFINED, BYTE = 1, 3, 4, 6
PLAIN_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="<>\U0010fffe"), max_size=30)


def metadata_of(backend: Backend, kind: str) -> dict[str, Any]:
    """As llama.cpp converts a tokenizer."""
    written = json.loads(backend.to_str())
    tokens = [backend.id_to_token(number) or "" for number in range(backend.get_vocab_size())]
    special = {
        token["id"]: CONTROL if token["special"] else USER_DEFINED for token in written["added_tokens"]
    }
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": kind,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [
            special.get(number, BYTE if token.startswith("<0x") else NORMAL)
            for number, token in enumerate(tokens)
        ],
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": CHATML,
    }
    if kind == "gpt2":
        metadata["tokenizer.ggml.pre"] = "gpt-2"
        metadata["tokenizer.ggml.merges"] = [" ".join(pair) for pair in written["model"]["merges"]]
    else:
        metadata["tokenizer.ggml.unknown_token_id"] = 0
        metadata["tokenizer.ggml.scores"] = [-float(number) for number in range(len(tokens))]
    return metadata


KINDS = {"gpt2": byte_level_backend, "llama": pieces_backend}


@pytest.fixture(params=["gpt2", "llama"], scope="module")
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, Backend]:
    """Out of the file, and what it was made from."""
    backend = KINDS[request.param]()
    file = tmp_path_factory.mktemp(request.param) / "tiny.gguf"
    return load_tokenizer(write_gguf(file, metadata_of(backend, request.param))), backend


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.one_of(PLAIN_TEXT, st.text("helo wth", max_size=20)))
def test_ids_are_those_of_the_tokenizer_it_was_made_from(both: tuple[Tokenizer, Backend], text: str) -> None:
    tokenizer, backend = both

    ids = tokenizer.encode(text).tolist()

    assert ids == backend.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids) == text


def test_what_the_file_says_besides(both: tuple[Tokenizer, Backend]) -> None:
    tokenizer, backend = both

    assert tokenizer.vocab_size == backend.get_vocab_size()
    assert tokenizer.max_position == 512
    assert tokenizer.chat_template == CHATML
    assert tokenizer.eos_token == backend.id_to_token(2)
    assert tokenizer.stop_tokens[0] == 2


DAMAGES: list[tuple[str, dict[str, Any], str]] = [
    ("no tokens", {"tokenizer.ggml.tokens": None}, "lacks tokenizer.ggml.tokens"),
    ("no merges", {"tokenizer.ggml.merges": None}, "lacks tokenizer.ggml.merges"),
    ("no kind", {"tokenizer.ggml.model": None}, "lacks tokenizer.ggml.model"),
    ("unknown kind", {"tokenizer.ggml.model": "bert"}, "tokenizer.ggml.model is 'bert'; supported are"),
    ("unknown cut", {"tokenizer.ggml.pre": "klingon"}, "tokenizer.ggml.pre is 'klingon'; supported are"),
    ("types", {"tokenizer.ggml.token_type": [1, 2]}, r"\d+ tokens but 2 in tokenizer.ggml.token_type"),
    ("stop", {"tokenizer.ggml.eos_token_id": 9999}, "eos_token_id is 9999, the vocabulary has"),
    ("no pair", {"tokenizer.ggml.merges": ["ab"]}, "'ab', which is no pair"),
    ("strange merges", {"tokenizer.ggml.merges": ["a @@"]}, "tokens and merges do not fit"),
]


@pytest.mark.parametrize(
    ("change", "message"), [case[1:] for case in DAMAGES], ids=[case[0] for case in DAMAGES]
)
def test_what_is_missing_or_damaged_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    changed = {**metadata_of(byte_level_backend(), "gpt2"), **change}
    file = write_gguf(
        tmp_path / "bad.gguf", {key: value for key, value in changed.items() if value is not None}
    )

    with pytest.raises(BadModel, match=message) as raised:
        load_tokenizer(file)

    assert "bad.gguf" in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"PK\x03\x04" + bytes(100)])
def test_a_file_that_is_no_gguf_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "bad.gguf"
    file.write_bytes(content)

    with pytest.raises(BadModel, match=r"bad\.gguf"):
        load_tokenizer(str(file))


@pytest.mark.engine
def test_the_embedded_models_ids_are_those_of_its_own_tokenizer(embedded: Tokenizer) -> None:
    """As Hugging Face's tokenizer of SmolLM2-135M-Instruct gives them."""
    assert embedded.encode("Hello world, don't 日本").tolist() == [
        19556,
        905,
        28,
        1326,
        982,
        17097,
        241,
        115,
        40993,
    ]
    assert embedded.encode("12345").tolist() == [33, 34, 35, 36, 37]
    assert embedded.encode_template_text("<|im_start|>user<|im_end|>").tolist() == [1, 4093, 2]


@pytest.mark.engine
def test_the_embedded_models_turns_end_with_its_control_tokens(embedded: Tokenizer) -> None:
    assert embedded.stop_tokens == (2, 0)
    assert embedded.stop_texts() == ("<|endoftext|>", "<|im_end|>")
    assert (embedded.vocab_size, embedded.max_position, embedded.adds_bos) == (49152, 8192, False)


class PlainBpe:
    """Byte-pair encoding as it is defined, for ASCII: digits alone, then GPT-2's words, then the
    best-ranked pair again and again."""

    _words = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[a-zA-Z]+| ?[^\sa-zA-Z0-9]+|\s+(?!\S)|\s+")

    def __init__(self, tokens: list[str], merges: list[str]) -> None:
        self._ids = {token: number for number, token in enumerate(tokens)}
        self._ranks = {tuple(line.split(" ")): rank for rank, line in enumerate(merges)}

    def encode(self, text: str) -> list[int]:
        pieces = [piece for piece in re.split(r"([0-9])", text) if piece]
        words = [
            word for piece in pieces for word in ([piece] if piece.isdigit() else self._words.findall(piece))
        ]
        return [self._ids[part] for word in words for part in self._merge(list(word))]

    def _merge(self, parts: list[str]) -> list[str]:
        parts = [chr(ord(part) + 256) if part in " \n\t" else part for part in parts]  # spelled so by GPT-2
        while True:
            pairs = [
                (self._ranks[pair], at) for at, pair in enumerate(pairwise(parts)) if pair in self._ranks
            ]
            if not pairs:
                return parts
            at = min(pairs)[1]
            parts[at : at + 2] = [parts[at] + parts[at + 1]]


@pytest.fixture(scope="module")
def plain_bpe(embedded: Tokenizer) -> PlainBpe:
    with (
        Path(embedded.origin).open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw,
    ):
        metadata = parse_gguf_header(Path(embedded.origin), raw).metadata
    return PlainBpe(metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"])


@pytest.mark.engine
@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.one_of(
        st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=60),
        st.lists(
            st.sampled_from(["def ", "return", " 12", "\n    ", "'ll", "()", "The", "\t", "  ", "x1"])
        ).map("".join),
    )
)
def test_the_embedded_models_ids_follow_from_its_merges(
    embedded: Tokenizer, plain_bpe: PlainBpe, text: str
) -> None:
    assert embedded.encode(text).tolist() == plain_bpe.encode(text)


@pytest.mark.engine
@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(codec="utf-8", min_codepoint=32, max_codepoint=0x3FFFF)))
def test_the_embedded_model_spells_all_that_people_write(embedded: Tokenizer, text: str) -> None:
    """Its vocabulary lacks some control characters and the bytes of empty planes."""
    assert embedded.decode(embedded.encode(text)) == text
