"""Schemas before they are enforced: what is refused, what is filled in, what is left alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepwarm.chat.enforced_schema import answer_schema, arguments_schema
from keepwarm.core.errors import BadRequest


def test_an_empty_schema_is_any_object() -> None:
    assert answer_schema({}) == {"type": "object"}


def test_arguments_are_an_object_even_where_nobody_says_so() -> None:
    assert arguments_schema("look", {}) == {"type": "object"}
    described = {"properties": {"a": {"type": "string"}}}
    assert arguments_schema("look", described) == {"type": "object", **described}
    chosen = {"anyOf": [{"type": "object"}, {"$ref": "#/$defs/x"}], "$defs": {"x": {"type": "object"}}}
    assert arguments_schema("look", chosen) == chosen


def test_required_properties_that_nobody_describes_may_be_anything() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a", "b"]}
    assert answer_schema(schema)["properties"] == {"a": {"type": "null"}, "b": True}
    typed = schema | {"additionalProperties": {"type": "integer"}}
    assert answer_schema(typed)["properties"]["b"] == {"type": "integer"}
    closed = schema | {"additionalProperties": False}
    assert answer_schema(closed)["properties"] == {"a": {"type": "null"}}


def test_items_that_nobody_describes_may_be_anything_at_any_depth() -> None:
    nested = {"type": "object", "properties": {"a": {"type": ["array", "null"], "minItems": 2}}}
    assert answer_schema(nested)["properties"]["a"]["items"] == {}
    tuples = {"type": "array", "prefixItems": [{"type": "null"}]}
    assert answer_schema(tuples) == tuples


def test_what_is_complete_stays_as_it_is() -> None:
    schema: dict[str, Any] = {
        "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
        "type": "object",
        "properties": {"größe": {"enum": ["klein", 1, None]}, "list": {"type": "array", "items": True}},
        "additionalProperties": False,
        "description": "not looked at",
    }
    assert answer_schema(schema) == schema


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        ({"type": "nonsense"}, "has the type 'nonsense'"),
        ({"type": ["string", "bool"]}, "has the type 'bool'"),
        ({"type": "object", "properties": {"a": {"type": "text"}}}, "at #/properties/a has the type 'text'"),
        ({"anyOf": [{}, {"$ref": "#/$defs/gone"}]}, "at #/anyOf/1 refers to '#/$defs/gone'"),
        ({"$ref": "https://example.com/schema"}, "refers to 'https://example.com/schema'"),
        ({"type": "array", "items": "string"}, "at #/items is a text, not a schema"),
        ({"not": {"type": "null"}}, "uses not, which"),
        ({"type": "array", "uniqueItems": True}, "uses uniqueItems"),
        ({"allOf": [{"type": "object"}, {"required": ["a"]}]}, "allOf with several schemas"),
        ({"type": "string", "pattern": "^(?=a)b"}, "looks ahead"),
        ({"type": "string", "pattern": "a{0,20000}"}, "20,000 times"),
    ],
)
def test_what_cannot_be_enforced_is_named_with_its_place(schema: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BadRequest) as refused:
        answer_schema(schema)
    assert str(refused.value).startswith("response_format: the schema ")
    assert complaint in str(refused.value)


def test_a_schema_without_an_end_is_refused() -> None:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(100):
        schema = {"type": "array", "items": schema}
    with pytest.raises(BadRequest, match="nested deeper than 64 levels"):
        answer_schema(schema)


def test_of_arguments_only_what_is_no_schema_is_refused() -> None:
    loose = {"type": "object", "properties": {"a": {"type": "array", "items": {}, "uniqueItems": True}}}
    assert arguments_schema("look", loose) == loose
    with pytest.raises(BadRequest, match=r"^tools: the schema of 'look' at #/properties/a has the type 'x'"):
        arguments_schema("look", {"properties": {"a": {"type": "x"}}})


def test_a_pattern_that_cannot_be_enforced_is_no_part_of_arguments() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(?!b)"}}}
    assert arguments_schema("look", schema)["properties"] == {"a": {"type": "string"}}


def test_a_switched_off_keyword_is_no_use_of_it() -> None:
    assert answer_schema({"type": "array", "items": {}, "uniqueItems": False})["items"] == {}


def test_a_reference_may_name_keys_with_slashes() -> None:
    schema = {"$defs": {"a/b~c": {"type": "null"}}, "$ref": "#/$defs/a~1b~0c"}
    assert answer_schema(schema) == schema


_KEYS = st.sampled_from(
    ["type", "$ref", "properties", "required", "items", "anyOf", "allOf", "pattern", "enum", "a", "$defs"]
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["object", "array", "#/a", "x{3}"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4),
)


@given(st.dictionaries(_KEYS, _JSON, max_size=5))
def test_whatever_is_sent_is_made_ready_or_refused(schema: dict[str, Any]) -> None:
    for ready in (answer_schema, lambda value: arguments_schema("look", value)):
        try:
            assert isinstance(ready(schema), dict)
        except BadRequest:
            continue


@pytest.mark.parametrize(
    "schema",
    [{"type": 5}, {"type": [["x"]]}, {"required": [["a"]]}, {"properties": []}, {"allOf": 3}, {"$ref": 1}],
)
def test_a_keyword_of_the_wrong_kind_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        arguments_schema("look", schema)
