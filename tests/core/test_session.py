"""Session keys: a client's own ids, made fit for logs and tables."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from keepwarm.core.session import MAX_ID_CHARACTERS, NO_SESSION, SessionKey


def test_ordinary_ids_stay_as_they_are() -> None:
    key = SessionKey.of(" 5b1f-77 ", "agent-3")

    assert (key.session, key.agent) == ("5b1f-77", "agent-3")


def test_no_ids_are_no_session() -> None:
    assert SessionKey.of("", "") == NO_SESSION


def test_an_agent_is_another_key_than_its_sessions_main_loop() -> None:
    assert len({SessionKey.of("s", ""), SessionKey.of("s", "a"), SessionKey.of("s", "b")}) == 3


@given(st.text() | st.text(min_size=MAX_ID_CHARACTERS))
def test_any_id_becomes_a_short_printable_one(name: str) -> None:
    session = SessionKey.of(name, "").session

    assert len(session) <= MAX_ID_CHARACTERS
    assert session.isprintable()
    assert SessionKey.of(session, "").session == session


def test_long_ids_that_differ_at_their_end_stay_apart() -> None:
    long = "x" * 1000

    assert SessionKey.of(long + "a", "") != SessionKey.of(long + "b", "")
