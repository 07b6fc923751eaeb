"""A grammar over one model's vocabulary: compiled, then followed token by token.

The one module that knows xgrammar. Importing it takes a moment, so `grammars` does so late.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import torch
import xgrammar as xgr

from keepwarm.core.errors import BadRequest, InvariantBroken
from keepwarm.core.grammar import Grammar, Vocabulary
from keepwarm.core.step import GrammarEnd

MAX_WHITESPACE: Final = 32
"""Characters of white space in a row: a small model at a high temperature would write nothing else."""

_RULE_CACHE_BYTES: Final = 64 * 1_000_000
"""Parts that grammars share (one tool's schema in two lists of tools) are compiled once."""

_FAULTS = (RuntimeError, ValueError, TypeError)  # what xgrammar raises for a source it cannot read

_PLACE_IN_ITS_SOURCE = re.compile(r"^\[[\d:]+\] \S+:\d+: |Check failed: \(.*?\) is false: ", re.MULTILINE)


class GrammarCompiler:
    """Lives in one thread. `vocab_size` is the width of the model's logits."""

    def __init__(self, vocabulary: Vocabulary, *, vocab_size: int, num_threads: int = 1) -> None:
        self._vocabulary = vocabulary
        self._vocab_size = vocab_size
        self._num_threads = num_threads
        self._by_markup: dict[frozenset[int], xgr.GrammarCompiler] = {}

    def compile(self, grammar: Grammar) -> xgr.CompiledGrammar:
        """Raises `BadRequest` naming the caller's field and what is wrong with its value."""
        compiler = self._compiler(frozenset(grammar.markup_tokens))
        try:
            match grammar.kind:
                case "json_schema":
                    return compiler.compile_json_schema(grammar.source, max_whitespace_cnt=MAX_WHITESPACE)
                case "regex":
                    return compiler.compile_regex(grammar.source)
                case "ebnf":
                    return compiler.compile_grammar(grammar.source)
                case "structural_tag":
                    return compiler.compile_structural_tag(grammar.source)
        except _FAULTS as error:
            field = grammar.field or "grammar"
            raise BadRequest(f"{field}: {_fault(grammar, error)}") from error

    def _compiler(self, markup_tokens: frozenset[int]) -> xgr.GrammarCompiler:
        """One a set of control tokens that are text: a model's tool format has one such set."""
        if markup_tokens not in self._by_markup:
            self._by_markup[markup_tokens] = xgr.GrammarCompiler(
                self._tokenizer_info(markup_tokens),
                max_threads=self._num_threads,
                cache_limit_bytes=_RULE_CACHE_BYTES,
            )
        return self._by_markup[markup_tokens]

    def _tokenizer_info(self, markup_tokens: frozenset[int]) -> xgr.TokenizerInfo:
        """A token without bytes, one beyond the vocabulary included, is never allowed."""
        known = self._vocabulary
        silent = known.control_tokens - markup_tokens
        spelled = [
            b"" if token in silent else spelling
            for token, spelling in enumerate(known.token_bytes[: self._vocab_size])
        ]
        return xgr.TokenizerInfo(
            spelled,
            xgr.VocabType.RAW,
            vocab_size=self._vocab_size,
            stop_token_ids=sorted(token for token in known.stop_tokens if token < self._vocab_size),
        )


class TokenMatcher:
    """One sequence's place in its grammar. Ask for `allowed`, draw from it, then `accept`."""

    def __init__(
        self, compiled: xgr.CompiledGrammar, *, vocab_size: int, generated: Sequence[int] = ()
    ) -> None:
        """`generated`: what was sampled before the sequence lost its slot."""
        self._matcher = xgr.GrammarMatcher(compiled)
        self._vocab_size = vocab_size
        self._bits = np.empty((1, -(-vocab_size // 32)), dtype=np.int32)
        self.end: GrammarEnd | None = None
        """Why `allowed` was None the last time."""
        for token in generated:
            self.accept(token)

    def allowed(self) -> torch.Tensor | None:
        """Which tokens may come next, (vocab_size,) bool, at least one of them; None: `end` says why."""
        if self._matcher.is_terminated():
            self.end = "complete"
            return None
        self._bits.fill(-1)
        self._matcher.fill_next_token_bitmask(self._bits)
        allowed = np.unpackbits(self._bits.view(np.uint8), bitorder="little")[: self._vocab_size]
        if not allowed.any():
            self.end = "complete" if self._matcher.is_completed() else "stuck"
            return None
        return torch.from_numpy(allowed.view(np.bool_))

    def accept(self, token: int) -> None:
        """It was drawn. Raises `InvariantBroken` for one that was not allowed."""
        if not self._matcher.accept_token(token):
            raise InvariantBroken(f"token {token} was drawn, which the grammar does not allow")


# --- what is wrong with a source ----------------------------------------------------------------


def _fault(grammar: Grammar, error: Exception) -> str:
    if grammar.kind == "structural_tag":
        for begin, schema in _schemas(json.loads(grammar.source)):
            try:
                xgr.Grammar.from_json_schema(json.dumps(schema))
            except _FAULTS as fault:
                return f"the schema of what follows {begin!r} cannot be enforced: {_in_short(fault)}"
    noun = "schema" if grammar.kind == "json_schema" else grammar.kind
    return f"the {noun} cannot be enforced: {_in_short(error)}"


def _schemas(value: Any, begin: str = "") -> Iterator[tuple[str, Any]]:
    """Every JSON schema in a structural tag, and the text that stands before it."""
    if isinstance(value, list):
        for item in value:
            yield from _schemas(item, begin)
    elif isinstance(value, dict):
        if value.get("type") == "json_schema":
            yield begin, value["json_schema"]
            return
        for item in value.values():
            yield from _schemas(item, value.get("begin") or begin)


def _in_short(error: Exception) -> str:
    return _PLACE_IN_ITS_SOURCE.sub("", str(error)).strip()[:300]
