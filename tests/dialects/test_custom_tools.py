"""Free text taken out of a call's arguments, however they are cut and whatever they look like."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepwarm.dialects.custom_tools import (
    CustomFormatIn,
    CustomInput,
    custom_arguments,
    custom_text,
    custom_tool,
)


def read_in_pieces(arguments: str, cuts: list[int]) -> tuple[str, str]:
    """What the pieces were joined, and what the reader holds in the end."""
    reader = CustomInput()
    edges = sorted({0, len(arguments), *(cut % (len(arguments) + 1) for cut in cuts)})
    pieces = [arguments[start:end] for start, end in pairwise(edges)]
    told = "".join(reader.feed(piece) for piece in pieces) + reader.finish()
    return told, reader.text


@given(text=st.text(), is_ascii=st.booleans(), cuts=st.lists(st.integers(0, 200), max_size=8))
def test_text_comes_back_whole_however_its_json_is_cut(text: str, is_ascii: bool, cuts: list[int]) -> None:
    arguments = json.dumps(custom_arguments(text), ensure_ascii=is_ascii)
    assert read_in_pieces(arguments, cuts) == (text, text)


@given(text=st.text(), is_ascii=st.booleans())
def test_text_comes_back_whole_character_by_character(text: str, is_ascii: bool) -> None:
    arguments = json.dumps(custom_arguments(text), ensure_ascii=is_ascii)
    assert read_in_pieces(arguments, list(range(len(arguments)))) == (text, text)


def test_text_is_told_while_it_is_written() -> None:
    reader = CustomInput()
    assert reader.feed('{"input": "*** Begin') == "*** Begin"
    assert reader.feed(" Patch\\") == " Patch"
    assert reader.feed('n"}') == "\n"
    assert reader.finish() == ""


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("", ""),
        ("{}", ""),
        ('{"patch": "a\\nb"}', "a\nb"),
        ('{"a": "x", "b": "y"}', '{"a": "x", "b": "y"}'),
        ('{"count": 3}', '{"count": 3}'),
        ("*** Begin Patch", "*** Begin Patch"),
        ('{"input": "kept", "more": 1}', "kept"),
        ('{"input": "half \\ud83d"}', "half �"),
        ('{"input": "cut of', "cut of"),
        ('{"input": "bad \\q"}', "bad \\q"),
    ],
)
def test_arguments_of_another_shape_are_read_as_well_as_they_can_be(arguments: str, text: str) -> None:
    assert custom_text(arguments) == text


def test_a_grammar_is_told_in_words() -> None:
    form = CustomFormatIn(type="grammar", syntax="lark", definition='start: "x"')
    spec = custom_tool("apply_patch", "Patches files.", form)
    assert spec.description == 'Patches files.\n\nThe input follows this lark grammar:\nstart: "x"'
    assert spec.parameters["required"] == ["input"]
    assert custom_tool("shell", None, None).description == ""
