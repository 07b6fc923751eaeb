"""What an answer must look like, as a value: written by `chat`, compiled and enforced by `engine`."""

from __future__ import annotations

from typing import Literal

import msgspec

GrammarKind = Literal["json_schema", "regex", "ebnf", "structural_tag"]


class Grammar(msgspec.Struct, frozen=True, kw_only=True):
    """`source` is a JSON schema, a regular expression, a GBNF grammar or a structural tag as JSON.

    Source: xgrammar's documentation of each kind.
    """

    kind: GrammarKind
    source: str
