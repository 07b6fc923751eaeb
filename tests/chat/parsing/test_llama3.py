"""JSON after `<|python_tag|>`, or bare."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepwarm.chat.parsing.llama3 import LLAMA3
from tests.chat.parsing.reading import Call, Part, calls_of, read_every_split, read_pieces, text_of

LS, LS_CALL = '{"name": "Bash", "parameters": {"command": "ls"}}', Call("Bash", {"command": "ls"})
READ, READ_CALL = (
    '{"type": "function", "name": "Read", "parameters": {"path": "a"}}',
    Call("Read", {"path": "a"}),
)
OTHER = '{"name": "undeclared", "parameters": {}}'

WELL_FORMED: list[tuple[str, tuple[Part, ...]]] = [
    ("<|python_tag|>" + LS, (LS_CALL,)),
    (LS, (LS_CALL,)),
    ("\n" + READ, (READ_CALL,)),
    (f"{LS}; {READ}", (LS_CALL, READ_CALL)),
    (f"<|python_tag|>{LS};{READ};\n{LS}", (LS_CALL, READ_CALL, LS_CALL)),
    (f"Wait. <|python_tag|>{LS}", ("Wait.", LS_CALL)),
    ("<|python_tag|>" + OTHER, (Call("undeclared", {}),)),
    (f"{LS}\nand so on", (LS_CALL, "and so on")),
    ("Nothing to call {here}.", ("Nothing to call {here}.",)),
]

CLOSED_EARLY: list[tuple[str, tuple[Part, ...]]] = [
    ('{"name": "Bash", "parameters": {"command": "ls', (LS_CALL,)),
    ('{"name": "Bash", "parameters": {"command": "ls" and', (LS_CALL, "and")),
    (f'{LS}; {{"name": "Read", "parameters": {{"path": "a', (LS_CALL, READ_CALL)),
]

UNREADABLE = ['<|python_tag|>brave_search.call(query="x")', "<|python_tag|>", '<|python_tag|>{"name": "Ba']


@pytest.mark.parametrize(("text", "parts"), WELL_FORMED)
def test_answers_are_read_the_same_however_they_are_cut(text: str, parts: tuple[Part, ...]) -> None:
    read = read_every_split(LLAMA3, text)

    assert (read.parts, read.num_malformed) == (parts, 0)


@pytest.mark.parametrize(("text", "parts"), CLOSED_EARLY)
@pytest.mark.parametrize("tag", ["", "<|python_tag|>"])
def test_a_call_that_breaks_off_is_closed_and_counted(tag: str, text: str, parts: tuple[Part, ...]) -> None:
    read = read_every_split(LLAMA3, tag + text)

    assert (read.parts, read.num_malformed) == (parts, 1)


@pytest.mark.parametrize("text", UNREADABLE)
def test_what_follows_the_tag_and_is_no_call_is_text_and_counted(text: str) -> None:
    read = read_every_split(LLAMA3, text)

    assert (text_of(read), calls_of(read), read.num_malformed) == (text, [], 1)


def test_a_bare_object_that_names_no_declared_tool_is_text() -> None:
    read = read_every_split(LLAMA3, OTHER)

    assert (text_of(read), calls_of(read), read.num_malformed) == (OTHER, [], 0)


@pytest.mark.parametrize("text", [text for text, _ in WELL_FORMED])
def test_an_answer_that_stops_anywhere_ends_in_valid_calls(text: str) -> None:
    for end in range(len(text)):
        read_pieces(LLAMA3, text[:end])


ARGUMENTS = st.dictionaries(
    st.text(max_size=6), st.none() | st.integers(-9, 9) | st.text(max_size=9), max_size=3
)


@settings(deadline=None)
@given(calls=st.lists(ARGUMENTS, min_size=1, max_size=3), is_tagged=st.booleans(), cut=st.integers(0, 99))
def test_any_calls_written_and_cut_anywhere_come_back_equal(
    calls: list[dict[str, Any]], is_tagged: bool, cut: int
) -> None:
    text = "; ".join(json.dumps({"name": "Bash", "parameters": arguments}) for arguments in calls)
    text = "<|python_tag|>" + text if is_tagged else text

    read = read_pieces(LLAMA3, [text[:cut], text[cut:]])

    assert read.parts == tuple(Call("Bash", arguments) for arguments in calls)
    assert read.num_malformed == 0
