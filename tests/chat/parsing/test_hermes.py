"""`<tool_call>` with JSON inside, as it should be, cut anywhere, and as models get it wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepwarm.chat.parsing.hermes import HERMES
from tests.chat.parsing.reading import Call, Part, calls_of, read_every_split, read_pieces, text_of

WEATHER = '{"name": "Read", "arguments": {"path": "a\\n\\"b\\" \\u00e9 🎈", "limit": 3}}'
READ_CALL = Call("Read", {"path": 'a\n"b" é 🎈', "limit": 3})
LS = '{"name": "Bash", "arguments": {"command": "ls"}}'
LS_CALL = Call("Bash", {"command": "ls"})


def _nested(depth: int) -> list[Any]:
    return [] if depth == 1 else [_nested(depth - 1)]


def block(*objects: str) -> str:
    return "<tool_call>\n" + "\n".join(objects) + "\n</tool_call>"


WELL_FORMED: list[tuple[str, tuple[Part, ...]]] = [
    ("", ()),
    ("Just words, 1 < 2 and <tool> and </tool_call", ("Just words, 1 < 2 and <tool> and </tool_call",)),
    (block(WEATHER), (READ_CALL,)),
    ("<tool_call>" + LS + "</tool_call>", (LS_CALL,)),
    (f"I look.\n{block(WEATHER)}\n", ("I look.", READ_CALL)),
    (f"One\n\n{block(LS)}\nTwo\n{block(WEATHER)} three ", ("One", LS_CALL, "Two", READ_CALL, "three ")),
    (block(LS) + "\n" + block(WEATHER), (LS_CALL, READ_CALL)),
    (block(LS, WEATHER), (LS_CALL, READ_CALL)),
    (f"<tool_call>[{LS}, {WEATHER}]</tool_call>", (LS_CALL, READ_CALL)),
    (block('{"arguments": {"command": "ls"}, "name": "Bash"}'), (LS_CALL,)),
    (block('{"name": "Bash", "arguments": "{\\"command\\": \\"ls\\"}"}'), (LS_CALL,)),
    (block('{"arguments": "{\\"command\\": \\"ls\\"}", "name": "Bash"}'), (LS_CALL,)),
    (block('{"name": "Bash", "parameters": {"command": "ls"}}'), (LS_CALL,)),
    (block('{"id": 7, "type": "function", "name": "Bash", "arguments": {"command": "ls"}}'), (LS_CALL,)),
    (block('{"name": "Bash", "arguments": {}}'), (Call("Bash", {}),)),
    (block('{"name": "Bash", "arguments": null}'), (Call("Bash", {}),)),
    (block('{"name": "Bash", "arguments": ""}'), (Call("Bash", {}),)),
    (block('{"name": "Bash"}'), (Call("Bash", {}),)),
    (
        block('{"name": "never declared", "arguments": {"x": [1, {"y": null}]}}'),
        (Call("never declared", {"x": [1, {"y": None}]}),),
    ),
]

SLOPPY: list[tuple[str, tuple[Part, ...]]] = [
    ("<tool_call>\n" + LS, (LS_CALL,)),
    ("<tool_call>\n" + LS + "\n" + block(WEATHER), (LS_CALL, READ_CALL)),
    ("<tool_call>\n" + LS + "\nDone.", (LS_CALL, "Done.")),
    (block('{"name": "Bash", "arguments": {"command": "ls"}'), (LS_CALL,)),
    (block('{"name": "Bash", "arguments": {"command": "ls"}}}'), (LS_CALL,)),
    (block('{"name": "Bash", "arguments": {"command": "ls",},}'), (LS_CALL,)),
    (
        block('{"name": "Bash", "arguments": {"command": "a\nb\tc", "x": True}}'),
        (Call("Bash", {"command": "a\nb\tc", "x": True}),),
    ),
    (
        block('{"name": "Bash", "arguments": {"command": "grep \\d it\\\'s"}}'),
        (Call("Bash", {"command": "grep \\d it's"}),),
    ),
    (
        block('{"name": "Bash", "arguments": {"command": "\\ud83c\\udf88 \\ud83c x"}}'),
        (Call("Bash", {"command": "🎈 \ufffd x"}),),
    ),
    (LS, (LS_CALL,)),
    ("Now:\n  " + LS + "\nand\n" + LS, ("Now:", LS_CALL, "and", LS_CALL)),
    (f"[{LS},\n{WEATHER}]", (LS_CALL, READ_CALL)),
    (f"So:\n```json\n{LS}\n```\nThere.", ("So:", LS_CALL, "There.")),
    (f"```\n{LS}\n{WEATHER}\n```", (LS_CALL, READ_CALL)),
]

UNREADABLE = [
    "<tool_call>",
    "<tool_call>{name: Bash}",
    '<tool_call>{"name": "Bash", "argu',
    '<tool_call>{"arguments": {"x": "y"}}',
    '<tool_call>{"name": "Bash", "arguments": ls} and more',
    "</tool_call> x",
]

CLOSED_EARLY: list[tuple[str, tuple[Part, ...]]] = [
    ('{"name": "Bash", "arguments": {"command": ls}}</tool_call> on', (Call("Bash", {}), "ls}} on")),
    ('{"name": "Bash", "arguments": {"command": "l', (Call("Bash", {"command": "l"}),)),
    ('{"name": "Bash", "arguments": {"a": [1, {"b": "c\\', (Call("Bash", {"a": [1, {"b": "c"}]}),)),
    ('{"name": "Bash", "arguments": {"a": 1, "b": 2', (Call("Bash", {"a": 1, "b": 2}),)),
    ('{"name": "Bash", "arguments": {"a": 1, "b": -', (Call("Bash", {"a": 1}),)),
    ('{"name": "Bash", "arguments": {"a": 1, "b', (Call("Bash", {"a": 1}),)),
    ('{"name": "Bash", "arguments": "{\\"a\\": \\"b', (Call("Bash", {"a": "b"}),)),
    ('{"name": "Bash", "arguments": {"a": ' + "[" * 500, (Call("Bash", {"a": _nested(99)}), "[" * 401)),
    (LS + "oops</tool_call>", (LS_CALL, "oops</tool_call>")),
]

PLAIN = [
    '{"name": "nobody", "arguments": {}}',
    '{"name": "Bash"}',
    '{"name": "Bash", "size": 3, "arguments": {}}',
    'Set {"name": "Bash", "arguments": {}} inline',
    '```json\n{"name": "nobody",\n "arguments": {}}\n```\n',
    "```python\nx = {'a': 1}\n```\n[1]: note\n{\n}\n[\n]",
    "```a much longer line than any language's name\n{}",
    '{"arguments": {"a": 1}, "name": "nobody"}  \n\n',
    "{",
    "```",
    '{"name": "Ba',
    " \n ",
]


@pytest.mark.parametrize(("text", "parts"), WELL_FORMED)
def test_well_formed_answers_are_read_the_same_however_they_are_cut(
    text: str, parts: tuple[Part, ...]
) -> None:
    read = read_every_split(HERMES, text)

    assert (read.parts, read.num_malformed) == (parts, 0)


@pytest.mark.parametrize(("text", "parts"), SLOPPY)
def test_what_can_mean_only_one_thing_is_read_so(text: str, parts: tuple[Part, ...]) -> None:
    read = read_every_split(HERMES, text)

    assert (read.parts, read.num_malformed) == (parts, 0)


@pytest.mark.parametrize("text", UNREADABLE)
def test_markup_that_is_no_call_is_text_as_written_and_counted(text: str) -> None:
    read = read_every_split(HERMES, text)

    assert (text_of(read), calls_of(read), read.num_malformed) == (text, [], 1)


@pytest.mark.parametrize(("text", "parts"), CLOSED_EARLY)
def test_a_call_that_breaks_off_is_closed_and_counted_and_the_rest_is_text(
    text: str, parts: tuple[Part, ...]
) -> None:
    read = read_every_split(HERMES, "<tool_call>" + text)

    assert (read.parts, read.num_malformed) == (parts, 1)


@pytest.mark.parametrize("text", PLAIN)
def test_json_that_calls_no_declared_tool_is_text_to_the_last_byte(text: str) -> None:
    read = read_every_split(HERMES, text)

    assert (text_of(read), calls_of(read), read.num_malformed) == (text, [], 0)


@pytest.mark.parametrize("text", [text for text, _ in WELL_FORMED + SLOPPY])
def test_an_answer_that_stops_anywhere_ends_in_valid_calls(text: str) -> None:
    for end in range(len(text)):
        read_pieces(HERMES, text[:end])


NUMBERS = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(st.text(max_size=8), JSON_VALUES, max_size=4)
CALLS = st.lists(st.tuples(st.text(min_size=1, max_size=12), ARGUMENTS), min_size=1, max_size=3)


@settings(deadline=None)
@given(calls=CALLS, ascii_only=st.booleans(), indent=st.sampled_from([None, 2]), drawn=st.data())
def test_any_calls_written_and_cut_anywhere_come_back_equal(
    calls: list[tuple[str, dict[str, Any]]], ascii_only: bool, indent: int | None, drawn: st.DataObject
) -> None:
    text = "\n".join(
        block(json.dumps({"name": name, "arguments": arguments}, ensure_ascii=ascii_only, indent=indent))
        for name, arguments in calls
    )
    cuts = sorted(drawn.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    read = read_pieces(HERMES, pieces)

    assert read.parts == tuple(Call(name, arguments) for name, arguments in calls)
    assert read.num_malformed == 0
