"""Stop strings are found the same wherever the text was cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepwarm.chat.stops import StopStrings
from keepwarm.core.errors import BadRequest

SHORT = st.text("ab", min_size=1, max_size=4)


def watch(stops: Sequence[str], pieces: Iterable[str]) -> tuple[str, str | None]:
    """All that was sent, and the stop string."""
    watcher = StopStrings(stops)
    sent = ""
    for piece in pieces:
        safe, match = watcher.add(piece)
        sent += safe
        if match is not None:
            return sent, match.stop_string
    return sent + watcher.flush(), None


def watch_slowly(stops: Sequence[str], text: str) -> tuple[str, str | None]:
    """The rule itself: complete first, then longest."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end - len(stop)], stop
    return text, None


@given(stops=st.lists(SHORT, max_size=4), pieces=st.lists(st.text("abc", max_size=4), max_size=10))
def test_the_result_is_the_rules_however_the_text_was_cut(stops: list[str], pieces: list[str]) -> None:
    assert watch(stops, pieces) == watch_slowly(stops, "".join(pieces))


@given(stops=st.lists(SHORT, max_size=4), text=st.text("abc", max_size=12))
def test_nothing_is_held_that_cannot_become_a_stop_string(stops: list[str], text: str) -> None:
    watcher = StopStrings(stops)
    sent = ""
    for end in range(1, len(text) + 1):
        safe, match = watcher.add(text[end - 1])
        if match is not None:
            return
        sent += safe
        held = text[len(sent) : end]
        assert not held or any(stop.startswith(held) for stop in stops)


def test_a_stop_string_over_three_pieces_is_found() -> None:
    assert watch(["END"], ["say E", "N", "D more"]) == ("say ", "END")


def test_a_beginning_that_fails_is_sent_and_a_later_one_is_found() -> None:
    assert watch(["aab"], ["a", "a", "a", "b"]) == ("a", "aab")


def test_the_string_that_is_complete_first_wins() -> None:
    assert watch(["bcd", "c"], ["abcd"]) == ("ab", "c")


def test_of_two_that_end_together_the_longer_wins() -> None:
    assert watch(["c", "bc"], ["a", "b", "c"]) == ("a", "bc")


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(BadRequest, match="stop strings must not be empty"):
        StopStrings(["x", ""])
