"""What a tool's JSON schema says of a parameter, and a parameter's text as the JSON it means."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from keepwarm.chat.messages import ToolSpec
from keepwarm.chat.parsing.json_stream import JsonStream

_KINDS = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
_MAX_REFERENCES = 8


def types_of_parameter(tool: ToolSpec | None, name: str) -> frozenset[str]:
    """The JSON types the parameter may have; empty where the schema does not say."""
    if tool is None:
        return frozenset()
    properties = tool.parameters.get("properties")
    schema = properties.get(name) if isinstance(properties, dict) else None
    return _types(schema, tool.parameters, _MAX_REFERENCES)


def json_of_text(text: str, types: frozenset[str]) -> str:
    """A parameter's text as JSON of one of the types, where it can be; otherwise as a string."""
    if types == {"string"}:
        return _as_string(text)
    value = _json_in(text)
    if value is None:
        return _as_string(text)
    kind = "null" if value == "null" else _KINDS[type(json.loads(value))]
    if "string" in types and kind != "null":
        is_meant = kind in types and kind in ("array", "object")
        return value if is_meant else _as_string(text)
    is_number = kind == "integer" and "number" in types
    return value if not types or kind in types or is_number else _as_string(text)


def json_of_cut_text(text: str, types: frozenset[str]) -> str:
    """The same for a text whose end never came: an object or array that began is completed."""
    if types & {"object", "array"} and text.lstrip()[:1] in ("{", "["):
        stream = JsonStream()
        stream.feed(text, is_last=True)
        return stream.close()
    return json_of_text(text, types)


def _json_in(text: str) -> str | None:
    """The one JSON value that the text is."""
    stream = JsonStream()
    num_read = stream.feed(text, is_last=True)
    if not stream.is_complete or text[num_read:].strip():
        return None
    return stream.take()


def _as_string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _types(schema: Any, root: Mapping[str, Any], num_references: int) -> frozenset[str]:
    if not isinstance(schema, dict):
        return frozenset()
    reference = schema.get("$ref")
    if isinstance(reference, str) and num_references:
        return _types(_resolve(reference, root), root, num_references - 1)
    stated = schema.get("type")
    if isinstance(stated, str):
        return frozenset({stated})
    if isinstance(stated, list):
        return frozenset(kind for kind in stated if isinstance(kind, str))
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(key), list) and num_references:
            each = [_types(one, root, num_references - 1) for one in schema[key]]
            return frozenset().union(*each) if all(each) else frozenset()
    return _types_of_values(schema)


def _types_of_values(schema: Mapping[str, Any]) -> frozenset[str]:
    values = schema["enum"] if isinstance(schema.get("enum"), list) else []
    if "const" in schema:
        values = [*values, schema["const"]]
    return frozenset(_KINDS.get(type(value), "null") for value in values)


def _resolve(reference: str, root: Mapping[str, Any]) -> Any:
    """`#/$defs/Name` within the same schema."""
    place: Any = root
    for step in reference.removeprefix("#/").split("/"):
        place = place.get(step) if isinstance(place, dict) else None
    return place
