"""Control tokens in text: found where a template wrote them, made harmless where a person did.

Content is *shielded* before it enters a template: a mark, a character that occurs nowhere in the
conversation, is put inside every control token's spelling. The rendered text is then cut at the
control tokens that are left, which only the template can have written, and the marks taken out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from keepwarm.core.errors import BadRequest

_FIRST_PRIVATE, _LAST_PRIVATE = 0xF0000, 0xFFFFD  # a plane nobody writes in
_TRIED_FIRST = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlToken:
    """`strips_left` and `strips_right`: it takes the white space beside it away."""

    token_id: int
    strips_left: bool = False
    strips_right: bool = False


def unused_characters(texts: Iterable[str], count: int) -> list[str]:
    """Private-use characters that none of the texts contains.

    Raises `BadRequest` when there are not so many.
    """
    wide = [text for text in texts if not text.isascii()]
    first = [chr(code) for code in range(_FIRST_PRIVATE, _FIRST_PRIVATE + _TRIED_FIRST)]
    found = [character for character in first if not any(character in text for text in wide)]
    if len(found) < count:  # somebody writes in that plane after all: look at each character once
        used = frozenset().union(*wide)
        every = map(chr, range(_FIRST_PRIVATE, _LAST_PRIVATE + 1))
        found = list(islice((character for character in every if character not in used), count))
    if len(found) < count:
        raise BadRequest("the conversation uses every private character of Unicode's plane 15")
    return found[:count]


class ControlTokens:
    """One model's control tokens, by their spelling."""

    def __init__(self, tokens: Mapping[str, ControlToken]) -> None:
        self._tokens = dict(tokens)
        self._pattern = re.compile(_longest_of(self._tokens))
        self._beginnings = {spelling[:n] for spelling in tokens for n in range(1, len(spelling))}
        self._endings = {spelling[-n:] for spelling in tokens for n in range(1, len(spelling))}
        self._longest = max(map(len, tokens), default=0)
        self._strips_right = {token.token_id for token in tokens.values() if token.strips_right}
        self._first_characters = {spelling[0] for spelling in tokens}
        self._last_characters = {spelling[-1] for spelling in tokens}

    def shield(self, text: str, mark: str) -> str:
        """The text with marks, so that neither it nor it and its neighbours spell a control token."""
        while self._pattern.search(text):
            text = self._pattern.sub(lambda match: match[0][0] + mark + match[0][1:], text)
        bare = text.lstrip()
        if self._may_complete(bare[: self._longest]):
            text = text[: len(text) - len(bare)] + mark + bare
        bare = text.rstrip()
        if self._may_begin(bare[-self._longest :]):
            text = bare + mark + text[len(bare) :]
        return text

    def _may_complete(self, head: str) -> bool:
        """Whether something before it could make a control token of its first characters."""
        if not any(character in head for character in self._last_characters):
            return False
        return any(head[:n] in self._endings for n in range(1, len(head) + 1))

    def _may_begin(self, tail: str) -> bool:
        """Whether something after it could make a control token of its last characters."""
        if not any(character in tail for character in self._first_characters):
            return False
        return any(tail[-n:] in self._beginnings for n in range(1, len(tail) + 1))

    def cut(self, text: str) -> Iterator[str | int]:
        """Plain text and control tokens' ids, in order; no empty text."""
        at = 0
        for match in self._pattern.finditer(text):
            token = self._tokens[match[0]]
            plain = text[at : match.start()]
            plain = plain.rstrip() if token.strips_left else plain
            if plain:
                yield plain
            yield token.token_id
            at = match.end()
            while token.strips_right and at < len(text) and text[at].isspace():
                at += 1
        if at < len(text):
            yield text[at:]

    def first(self, text: str) -> int | None:
        """The control token that the text begins with."""
        match = self._pattern.match(text)
        return None if match is None else self._tokens[match[0]].token_id

    def ends_closed(self, text: str) -> bool:
        """Whether the text ends with a control token that leaves alone what follows it."""
        *_, last = self.cut(text[-2 * self._longest :]) if text else ("",)
        if not isinstance(last, int):
            return False
        return last not in self._strips_right

    def cut_inside(self, text: str) -> list[str]:
        """The text in pieces none of which spells a control token."""
        pieces, at = [], 0
        while match := self._pattern.search(text, at):  # one may begin inside another
            pieces.append(text[at : match.start() + 1])
            at = match.start() + 1
        return [piece for piece in (*pieces, text[at:]) if piece]


def _longest_of(spellings: Iterable[str]) -> str:
    """A pattern for the longest of the spellings at a place, as a tree: thousands stay fast."""
    root: dict[str, dict] = {}  # type: ignore[type-arg] # recursive
    for spelling in spellings:
        node = root
        for character in spelling:
            node = node.setdefault(character, {})
        node[""] = {}
    return _pattern_of(root) if root else "(?!)"


def _pattern_of(node: dict[str, dict]) -> str:  # type: ignore[type-arg] # recursive
    """A chain of single children is a literal; a fork is a group, optional where a spelling ends."""
    literal = ""
    while len(node) == 1 and "" not in node:
        ((character, node),) = node.items()
        literal += re.escape(character)
    branches = [re.escape(character) + _pattern_of(child) for character, child in node.items() if character]
    if not branches:
        return literal
    return f"{literal}(?:{'|'.join(branches)}){'?' if '' in node else ''}"
