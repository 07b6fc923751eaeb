"""`<function=…>` with `<parameter=…>`: values typed by the tool's schema, streamed as they come."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepwarm.chat.events import ToolCallArguments
from keepwarm.chat.parsing.parser import ParsingContext
from keepwarm.chat.parsing.qwen3_coder import QWEN3_CODER
from tests.chat.parsing.reading import READ, Call, Part, calls_of, read_every_split, read_pieces, text_of

CODE = 'if a < b:\n    print("x")\n\n</div>'


def function(name: str, **values: str) -> str:
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<function={name}>\n{parameters}</function>"


def block(*functions: str) -> str:
    return "<tool_call>\n" + "\n".join(functions) + "\n</tool_call>"


LS, LS_CALL = function("Bash", command="ls"), Call("Bash", {"command": "ls"})
TYPED = function(
    "Read", path=CODE, limit="3", ratio="2", deep="True", tags='["a", "b"]', more='{"x": {"y": null}}', z="7"
)
TYPED_CALL = Call(
    "Read",
    {
        "path": CODE,
        "limit": 3,
        "ratio": 2,
        "deep": True,
        "tags": ["a", "b"],
        "more": {"x": {"y": None}},
        "z": 7,
    },
)

WELL_FORMED: list[tuple[str, tuple[Part, ...]]] = [
    (block(LS), (LS_CALL,)),
    (block(TYPED), (TYPED_CALL,)),
    (block(LS, TYPED), (LS_CALL, TYPED_CALL)),
    (f"Look:\n\n{block(LS)}\nand\n{block(LS)}\n", ("Look:", LS_CALL, "and", LS_CALL)),
    (block(function("Bash")), (Call("Bash", {}),)),
    (block(function("Bash", command="")), (Call("Bash", {"command": ""}),)),
    (block(function("Bash", command="\n a\n\n")), (Call("Bash", {"command": "\n a\n\n"}),)),
    (block(function("Read", path="12", limit="many")), (Call("Read", {"path": "12", "limit": "many"}),)),
    (
        block(function("undeclared", a="12", b="x y", c='{"d": 1}', e="true")),
        (Call("undeclared", {"a": 12, "b": "x y", "c": {"d": 1}, "e": True}),),
    ),
    ("a < b, <function> and <parameter=x>", ("a < b, <function> and <parameter=x>",)),
]

SLOPPY: list[tuple[str, tuple[Part, ...]]] = [
    (LS, (LS_CALL,)),
    (LS + "\n</tool_call>", (LS_CALL,)),
    ("<tool_call>\n" + LS, (LS_CALL,)),
    ("<tool_call><function=Bash><parameter=command>ls</parameter></function></tool_call>", (LS_CALL,)),
    ("<tool_call><function=Bash>\n<parameter=command>\nls\n</function></tool_call>", (LS_CALL,)),
    ("<tool_call><function=Bash>\n<parameter=command>\nls\n</parameter>\n</tool_call>!", (LS_CALL, "!")),
    (
        "<function=Read><parameter=path>\na\n<parameter=limit>\n3\n</function>",
        (Call("Read", {"path": "a", "limit": 3}),),
    ),
    ('<tool_call>\n{"name": "Bash", "arguments": {"command": "ls"}}\n</tool_call>', (LS_CALL,)),
    ('```json\n{"name": "Bash", "arguments": {"command": "ls"}}\n```', (LS_CALL,)),
]

CLOSED_EARLY: list[tuple[str, tuple[Part, ...]]] = [
    ("<function=Bash>", (Call("Bash", {}),)),
    ("<function=Bash>\n<parameter=command>\nls -", (Call("Bash", {"command": "ls -"}),)),
    ("<function=Read>\n<parameter=limit>\n3", (Call("Read", {"limit": 3}),)),
    ('<function=Read>\n<parameter=tags>\n["a", "b', (Call("Read", {"tags": ["a", "b"]}),)),
    ("<function=Bash>\n<parameter=comm", (Call("Bash", {}), "<parameter=comm")),
    ("<function=Bash>\nls\n</function></tool_call>", (Call("Bash", {}), "ls\n</function>")),
]

UNREADABLE = [
    "<tool_call>",
    "<tool_call>\n<function",
    "<tool_call>\n<function=Ba",
    "<function=Bash\n>",
    "<function=>",
    "<tool_call>ls",
]


@pytest.mark.parametrize(("text", "parts"), WELL_FORMED + SLOPPY)
def test_answers_are_read_the_same_however_they_are_cut(text: str, parts: tuple[Part, ...]) -> None:
    read = read_every_split(QWEN3_CODER, text)

    assert (read.parts, read.num_malformed) == (parts, 0)


@pytest.mark.parametrize(("text", "parts"), CLOSED_EARLY)
def test_a_call_that_breaks_off_is_closed_and_counted_and_the_rest_is_text(
    text: str, parts: tuple[Part, ...]
) -> None:
    read = read_every_split(QWEN3_CODER, "<tool_call>" + text)

    assert (read.parts, read.num_malformed) == (parts, 1)


@pytest.mark.parametrize("text", UNREADABLE)
def test_markup_that_is_no_call_is_text_as_written_and_counted(text: str) -> None:
    read = read_every_split(QWEN3_CODER, text)

    assert (text_of(read), calls_of(read), read.num_malformed) == (text, [], 1)


@pytest.mark.parametrize("text", [text for text, _ in WELL_FORMED + SLOPPY])
def test_an_answer_that_stops_anywhere_ends_in_valid_calls(text: str) -> None:
    for end in range(len(text)):
        read_pieces(QWEN3_CODER, text[:end])


def test_a_string_goes_out_as_it_comes() -> None:
    parser = QWEN3_CODER.parser(ParsingContext(tools=[READ], new_call_id=lambda: "c"))
    parser.feed("<tool_call>\n<function=Read>\n<parameter=path>\nsrc/")

    assert parser.feed("main") == [ToolCallArguments(json="main")]


VALUES = st.text(max_size=12).filter(lambda text: "<" not in text and not text.endswith("\r"))
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "path": VALUES,
        "limit": st.integers(-(2**60), 2**60),
        "ratio": st.floats(allow_nan=False, allow_infinity=False),
        "deep": st.booleans(),
        "tags": st.lists(VALUES, max_size=3),
        "more": st.dictionaries(VALUES, st.none() | st.integers(-9, 9) | VALUES, max_size=3),
    },
)


def written(value: Any) -> str:
    """As the family's template writes a value."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else str(value)


@settings(deadline=None)
@given(calls=st.lists(ARGUMENTS, min_size=1, max_size=3), drawn=st.data())
def test_any_calls_written_and_cut_anywhere_come_back_equal(
    calls: list[dict[str, Any]], drawn: st.DataObject
) -> None:
    text = "\n".join(
        block(function("Read", **{key: written(value) for key, value in arguments.items()}))
        for arguments in calls
    )
    cuts = sorted(drawn.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    read = read_pieces(QWEN3_CODER, pieces)

    assert read.parts == tuple(Call("Read", arguments) for arguments in calls)
    assert read.num_malformed == 0
