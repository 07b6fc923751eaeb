"""What an answer must look like, as a value: written by `chat`, compiled and enforced by `engine`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

GrammarKind = Literal["json_schema", "regex", "ebnf", "structural_tag"]


class Grammar(msgspec.Struct, frozen=True, kw_only=True):
    """`source` is a JSON schema, a regular expression, a GBNF grammar or a structural tag as JSON.

    Source: xgrammar's documentation of each kind.
    """

    kind: GrammarKind
    source: str
    field: str = ""
    """What the caller calls it, for errors: "tool_choice" or "response_format"."""
    markup_tokens: tuple[int, ...] = ()
    """Control tokens that are text to this grammar, since the answer's parser reads them as such.
    All others are never sampled, but for the stop tokens where the grammar is complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """How tokens spell, as a grammar must know it."""

    token_bytes: Sequence[bytes]
    """What each id adds to a text, control tokens their spelling; empty where an id names no token."""
    control_tokens: frozenset[int]
    """Ids that are structure, not text."""
    stop_tokens: frozenset[int]
