"""Strings to look for in text that comes cut anywhere."""

from __future__ import annotations

import re
from collections.abc import Iterable


class Marks:
    """A set of them. What may be the beginning of one is held back until it is certain."""

    def __init__(self, spellings: Iterable[str]) -> None:
        self.spellings = tuple(sorted(set(spellings), key=len, reverse=True))
        self._pattern = re.compile("|".join(map(re.escape, self.spellings)) or "(?!)")
        self._beginnings = frozenset(mark[:n] for mark in self.spellings for n in range(1, len(mark)))
        self._longest_beginning = max(map(len, self._beginnings), default=0)
        self._firsts = frozenset(beginning[0] for beginning in self._beginnings)

    def split(self, text: str, *, is_last: bool) -> tuple[int, str]:
        """How many characters are certainly before the first mark, and that mark, "" where none is
        certain yet. `is_last`: no text follows.

        Of marks that begin at one place the longest counts, so a short one waits for a longer one.
        """
        held = len(text) if is_last else self._start_of_held(text)
        found = self._pattern.search(text)
        if found is None or found.start() >= held:
            return held, ""
        return found.start(), found[0]

    def begin_with(self, text: str) -> bool:
        """Whether a mark could still come of this text, its whole a proper beginning."""
        return not text or text in self._beginnings

    def _start_of_held(self, text: str) -> int:
        if self._firsts.isdisjoint(text):
            return len(text)  # nearly always
        for start in range(max(0, len(text) - self._longest_beginning), len(text)):
            if text[start:] in self._beginnings:
                return start
        return len(text)
