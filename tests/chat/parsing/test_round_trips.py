"""What a family's template writes of a call, its parser reads back as the same call."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepwarm.chat.messages import ToolSpec
from keepwarm.chat.parsing.registry import format_for
from tests.chat.parsing.reading import Call, calls_of, read_pieces, text_of
from tests.chat.parsing.written import TEMPLATES, answer_of

ONE_CALL = ("gpt-oss",)
SHOWS_NO_TEXT = ("gpt-oss", "mistral-array", "mistral-call-id")
WORDS = st.text(
    st.characters(exclude_categories=("Cs", "Cc")) | st.sampled_from("\n\t\"'\\{}[],:"), max_size=12
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(-1e9, 1e9) | WORDS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.from_regex(r"[a-z_]{1,6}", fullmatch=True), inner, max_size=3)
    ),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.from_regex(r"[a-zA-Z_]{1,8}", fullmatch=True), VALUES, max_size=4)
CALLS = st.lists(
    st.tuples(st.from_regex(r"[A-Za-z_][A-Za-z0-9_-]{0,15}", fullmatch=True), ARGUMENTS), max_size=3
)
KINDS = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


def tool_for(name: str, arguments: dict[str, Any]) -> ToolSpec:
    """One whose schema gives each argument the type it has."""
    kinds = {key: {"type": KINDS.get(type(value), "null")} for key, value in arguments.items()}
    return ToolSpec(name=name, description="", parameters={"type": "object", "properties": kinds})


@pytest.mark.parametrize("name", TEMPLATES)
@settings(deadline=None, max_examples=40)
@given(calls=CALLS, said=st.sampled_from(["", "I look."]), drawn=st.data())
def test_calls_come_back_equal_however_the_answer_is_cut(
    name: str, calls: list[tuple[str, dict[str, Any]]], said: str, drawn: st.DataObject
) -> None:
    calls = calls[:1] if name in ONE_CALL else calls
    said = said if calls and name not in SHOWS_NO_TEXT else ""
    tools = list({call: tool_for(call, arguments) for call, arguments in calls}.values())
    names = [call for call, _ in calls]
    if len(set(names)) < len(names) or not calls:
        return  # two calls of one tool may have arguments of other types
    text = answer_of(name, said, calls)
    cuts = sorted(drawn.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    read = read_pieces(format_for(TEMPLATES[name]), pieces, tools=tools)

    assert calls_of(read) == [Call(call, arguments) for call, arguments in calls]
    assert text_of(read) == said
    assert read.num_malformed == 0
