"""The bytes one token stands for, by the way its tokenizer spells them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from tokenizers import Tokenizer as Backend

from keepwarm.core.errors import BadModel

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling:
    """How tokens become bytes, and what happens to the very first of them."""

    to_bytes: Callable[[str], bytes]
    strips_first_space: bool


def spelling_of(backend: Backend, origin: str) -> Spelling:
    """Raises `BadModel` when the tokenizer's decoder is of no kind that generates text."""
    decoder: dict[str, Any] | None = None
    if backend.decoder is not None:
        decoder = msgspec.json.decode(backend.decoder.__getstate__())
    steps = _steps(decoder)
    kinds = [step["type"] for step in steps]
    if "ByteLevel" in kinds:
        return Spelling(to_bytes=_byte_level, strips_first_space=False)
    if "Metaspace" in kinds:
        prepends = steps[kinds.index("Metaspace")].get("prepend_scheme", "always") != "never"
        return Spelling(to_bytes=_sentencepiece, strips_first_space=prepends)
    if "Replace" in kinds:
        return Spelling(to_bytes=_sentencepiece, strips_first_space="Strip" in kinds)
    raise BadModel(
        f"{origin}: the tokenizer's decoder is {'+'.join(kinds) or 'missing'};"
        " supported are ByteLevel, Metaspace and SentencePiece's Replace+ByteFallback"
    )


def _steps(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    if decoder["type"] == "Sequence":
        return [step for inner in decoder["decoders"] for step in _steps(inner)]
    return [decoder]


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte: itself where printable, else the next from U+0100.

    Source: openai/gpt-2 `encoder.py`.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


def _byte_level(token: str) -> bytes:
    try:
        return bytes([_BYTE_OF[character] for character in token])
    except KeyError:  # an added token, spelled as text
        return token.encode()


def _sentencepiece(token: str) -> bytes:
    match = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(match[1], 16)]) if match else token.replace("▁", " ").encode()
