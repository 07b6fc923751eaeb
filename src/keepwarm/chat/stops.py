"""Stop strings, found wherever tokens happen to cut them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from keepwarm.core.errors import BadRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class StopMatch:
    """The string that ended the answer. The text before it is already out."""

    stop_string: str


class StopStrings:
    """Watches one answer. The string that is complete first wins; of two that end together, the
    longer. Both are the same however the text was cut."""

    def __init__(self, stops: Sequence[str]) -> None:
        """Raises `BadRequest` on an empty string, which would end every answer at once."""
        if not all(stops):
            raise BadRequest("stop strings must not be empty")
        self._watchers = [_Watcher(stop) for stop in sorted(set(stops), key=len, reverse=True)]
        self._held = ""

    def add(self, text: str) -> tuple[str, StopMatch | None]:
        """The text that is safe to send, and the match. After a match, add nothing."""
        if not self._watchers:
            return text, None
        pending = self._held + text
        for place, character in enumerate(text, start=len(self._held) + 1):
            found = [watcher.stop for watcher in self._watchers if watcher.sees(character)]
            if found:
                self._held = ""
                return pending[: place - len(found[0])], StopMatch(stop_string=found[0])
        num_held = max(watcher.num_matched for watcher in self._watchers)
        self._held = pending[len(pending) - num_held :]
        return pending[: len(pending) - num_held], None

    def flush(self) -> str:
        """The text that was held back and is not going to be a stop string; the next begins anew."""
        held, self._held = self._held, ""
        for watcher in self._watchers:
            watcher.num_matched = 0
        return held


class _Watcher:
    """How much of one stop string the text ends with (Knuth, Morris and Pratt)."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.num_matched = 0
        self._fall_back = _longest_borders(stop)

    def sees(self, character: str) -> bool:
        """Whether the stop string is complete with this character."""
        while self.num_matched and self.stop[self.num_matched] != character:
            self.num_matched = self._fall_back[self.num_matched - 1]
        if self.stop[self.num_matched] == character:
            self.num_matched += 1
        return self.num_matched == len(self.stop)


def _longest_borders(text: str) -> list[int]:
    """For each prefix, how long the longest proper prefix is that it also ends with."""
    borders = [0] * len(text)
    length = 0
    for place in range(1, len(text)):
        while length and text[place] != text[length]:
            length = borders[length - 1]
        length += text[place] == text[length]
        borders[place] = length
    return borders
