"""JSON schemas as values, in as few words as they need."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
BOOLEAN: Schema = {"type": "boolean"}
ANY_OBJECT: Schema = {"type": "object"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NAME: Schema = {"type": "string", "minLength": 1}


def record(required: dict[str, Schema], optional: dict[str, Schema] | None = None, about: str = "") -> Schema:
    """An object with these fields, and any others."""
    schema: Schema = {"type": "object", "properties": {**required, **(optional or {})}}
    if required:
        schema["required"] = list(required)
    return described(schema, about) if about else schema


def array(items: Schema, *, at_least: int = 0) -> Schema:
    return {"type": "array", "items": items, "minItems": at_least}


def one_of(*schemas: Schema) -> Schema:
    """Any of these: `anyOf`, because bodies with further fields may match several."""
    return {"anyOf": list(schemas)}


def or_null(schema: Schema) -> Schema:
    return one_of(schema, {"type": "null"})


def constant(value: str) -> Schema:
    return {"type": "string", "const": value}


def choice(*values: str) -> Schema:
    return {"type": "string", "enum": list(values)}


def between(low: float, high: float, about: str = "") -> Schema:
    schema: Schema = {"type": "number", "minimum": low, "maximum": high}
    return described(schema, about) if about else schema


def integer(low: int, high: int | None = None, about: str = "") -> Schema:
    schema: Schema = {"type": "integer", "minimum": low}
    if high is not None:
        schema["maximum"] = high
    return described(schema, about) if about else schema


def described(schema: Schema, about: str) -> Schema:
    return {**schema, "description": about}


def ref(name: str) -> Schema:
    """One of the document's `components.schemas`."""
    return {"$ref": f"#/components/schemas/{name}"}


def tagged(kind: str, required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    """A record whose field `type` says which it is."""
    return record({"type": constant(kind), **required}, optional)


def texts(items: Schema) -> Schema:
    """Content that may be one string or a list of parts."""
    return one_of(STRING, array(items))
