"""Spellings for the tiny models' random tokens, so that grammars can be put on them."""

from __future__ import annotations

from collections.abc import Sequence

from keepwarm.core.grammar import Vocabulary
from tests.engine.tiny_models import VOCAB_SIZE

STOP = 2
CALL = 1
"""A control token whose spelling is markup."""

_PIECES = ('{"', '": ', '", "', '"}', "true", "false", "null", "name", "]}", "\u00c3")
_SPELLED = [b"<pad>", b"[CALL]", b"<end>"] + [bytes([byte]) for byte in range(128)]
_SPELLED += [piece.encode("latin1") for piece in _PIECES] + [bytes([byte]) for byte in range(0x80, 0xA8)]

VOCABULARY = Vocabulary(
    token_bytes=_SPELLED, control_tokens=frozenset({0, CALL, STOP}), stop_tokens=frozenset({STOP})
)
"""Shorter than the model's: the ids behind it are padding."""

assert len(_SPELLED) < VOCAB_SIZE


def text_of(tokens: Sequence[int]) -> str:
    """Without the stop token."""
    return b"".join(_SPELLED[token] for token in tokens if token != STOP).decode()


def tokens_of(text: str) -> list[int]:
    """A token a byte."""
    return [3 + byte for byte in text.encode()]
