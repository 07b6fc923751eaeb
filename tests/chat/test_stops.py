from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepwarm.chat.stops import StopStrings
from keepwarm.core.errors import BadRequest

_LETTERS = st.text(alphabet="ab\n", max_size=30)
_STOPS = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=4), max_size=3)


def _run(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    watcher = StopStrings(stops)
    sent = ""
    for piece in pieces:
        safe, match = watcher.add(piece)
        sent += safe
        if match is not None:
            return sent, match.stop_string
    return sent + watcher.flush(), None


def _earliest(stops: list[str], text: str) -> tuple[str, str | None]:
    """The slow way: the smallest end, then the longest string."""
    for end in range(1, len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended:
            longest = max(ended, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(stops=_STOPS, pieces=st.lists(_LETTERS, max_size=6))
def test_wherever_the_text_is_cut_the_same_stop_string_wins(stops: list[str], pieces: list[str]) -> None:
    assert _run(stops, pieces) == _earliest(stops, "".join(pieces))


def test_text_that_may_begin_a_stop_string_is_held_back_and_no_more() -> None:
    watcher = StopStrings(["###", "\n\nHuman:"])
    assert watcher.add("hello #") == ("hello ", None)
    assert watcher.add("# no\n") == ("## no", None)
    assert watcher.add("x") == ("\nx", None)


def test_without_stop_strings_nothing_is_held_back() -> None:
    assert StopStrings([]).add("abc") == ("abc", None)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(BadRequest, match="empty"):
        StopStrings(["x", ""])
