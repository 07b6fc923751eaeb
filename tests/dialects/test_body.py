"""The top level of a body: what is wrong is named, what is unknown is reported."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepwarm.core.errors import BadRequest
from keepwarm.dialects.body import JsonBody
from keepwarm.dialects.errors import BadField


class Inner(msgspec.Struct):
    name: str
    sizes: list[int] = []


INNER = msgspec.json.Decoder(list[Inner])


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "not valid JSON"),
        (b'{"a": ', "not valid JSON"),
        (b'{"a": nope}', "not valid JSON"),
        (b"[1]", "must be a JSON object"),
        (b'"text"', "must be a JSON object"),
        (b'{"a":' + b"[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_json_object_is_refused(body: bytes, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        JsonBody(body)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"items": 5}', "items: must be of type array, got 5"),
        (b'{"items": ["x"]}', 'items.0: must be of type object, got "x"'),
        (
            b'{"items": [{"name": "a", "sizes": [1, "2"]}]}',
            'items.0.sizes.1: must be of type integer, got "2"',
        ),
        (b'{"items": [{"name": 1.5}]}', "items.0.name: must be of type string, got 1.5"),
        (b'{"items": [{}]}', "items.0.name: required"),
        (b"{}", "items: required"),
        (b'{"items": null}', "items: required"),
    ],
)
def test_a_wrong_value_is_named_with_its_path_and_what_is_allowed(body: bytes, said: str) -> None:
    with pytest.raises(BadField) as caught:
        JsonBody(body).required("items", INNER)
    assert str(caught.value) == said
    assert said.startswith(caught.value.field)


def test_long_values_are_shown_cut_short() -> None:
    with pytest.raises(BadField) as caught:
        JsonBody(b'{"items": "' + b"x" * 10_000 + b'"}').required("items", INNER)
    assert len(str(caught.value)) < 200


def test_numbers_outside_their_range_are_refused_with_the_range() -> None:
    fields = JsonBody(b'{"heat": 3.5, "count": 0}')
    with pytest.raises(BadField, match=r"heat: must be between 0 and 2, got 3\.5"):
        fields.number("heat", low=0, high=2)
    with pytest.raises(BadField, match="count: must be at least 1, got 0"):
        fields.integer("count", low=1)


def test_fields_nobody_asked_for_are_reported() -> None:
    fields = JsonBody(b'{"known": true, "ignored": {}, "new_thing": [1]}')
    assert fields.flag("known")
    assert fields.unknown({"ignored"}) == ["new_thing"]


def test_half_characters_are_mended_and_whole_ones_kept() -> None:
    fields = JsonBody(
        rb'{"a": "x\ud83d", "b": "\ud83d\ude00", "c": "\\ud83d", "d": "\ude00!", "e": "\ud83dtail of it"}'
    )
    read = [fields.text(name) for name in "abcde"]
    assert read == ["x\ufffd", "\U0001f600", r"\ud83d", "\ufffd!", "\ufffdtail of it"]


def test_a_half_character_with_words_after_it_is_mended() -> None:
    assert JsonBody(rb'{"a": "\ud83d and many more words after it"}').text("a") is not None


def test_bytes_that_are_no_text_are_refused_by_their_field() -> None:
    with pytest.raises(BadField, match="a: not valid JSON: Invalid UTF-8"):
        JsonBody(b'{"a": "\xff"}').text("a")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_body_or_a_bad_request(body: bytes) -> None:
    with contextlib.suppress(BadRequest):
        JsonBody(body).text("model")
