"""JSON schemas of callers, made ready to be enforced: checked, and with nothing left to guess.

What is wrong is told before the prompt is rendered; what only a compiler can tell (a regular
expression that does not parse) the engine tells later. Of a tool's arguments some keywords are left
unenforced, since a call that a model made freely would not satisfy them either; an answer whose
whole point is its schema is refused instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from keepwarm.core.errors import BadRequest

ANY_OBJECT: Final[dict[str, Any]] = {"type": "object"}

MAX_DEPTH: Final = 64
MAX_PATTERN_REPEATS: Final = 1000
"""`x{0,20000}` takes a minute to compile: time grows with the square."""

_TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
_NOT_ENFORCED = (
    *("not", "if", "then", "else", "contains", "uniqueItems", "multipleOf"),
    *("dependentRequired", "dependentSchemas", "dependencies", "$dynamicRef"),
)
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "propertyNames", "unevaluatedProperties", "unevaluatedItems")

_LOOKS_AROUND = re.compile(r"\(\?(?:[=!]|<[=!])")
_REPEATS = re.compile(r"\{(\d*),?(\d*)\}")


def answer_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """For an answer's text; {} is any JSON object. Raises `BadRequest`."""
    return _Schema(schema, "response_format: the schema", is_exact=True).ready() if schema else ANY_OBJECT


def arguments_schema(tool_name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """For a call's arguments, which are an object whatever the schema says. Raises `BadRequest`."""
    ready = _Schema(schema, f"tools: the schema of {tool_name!r}", is_exact=False).ready()
    has_form = any(key in ready for key in ("type", "$ref", "anyOf", "oneOf", "allOf", "const", "enum"))
    return ready if has_form else {"type": "object", **ready}


class _Schema:
    def __init__(self, root: Mapping[str, Any], subject: str, *, is_exact: bool) -> None:
        self._root = root
        self._subject = subject
        self._is_exact = is_exact

    def ready(self) -> dict[str, Any]:
        ready: dict[str, Any] = self._ready(self._root, "#", 0)
        return ready

    def _ready(self, schema: Any, place: str, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise self._fault(place, f"is nested deeper than {MAX_DEPTH} levels")
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            raise self._fault(place, f"is {_kind(schema)}, not a schema")
        self._check(schema, place)
        required = schema.get("required", [])
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise self._fault(f"{place}/required", "is no array of names")
        ready = {key: self._ready_value(key, value, place, depth) for key, value in schema.items()}
        return self._with_pattern(_completed(ready), place)

    def _ready_value(self, key: str, value: Any, place: str, depth: int) -> Any:
        inside = f"{place}/{key}"
        if key in _SINGLE:
            return self._ready(value, inside, depth + 1)
        if key in _NAMED:
            if not isinstance(value, Mapping):
                raise self._fault(inside, "is no object of schemas")
            return {name: self._ready(each, f"{inside}/{name}", depth + 1) for name, each in value.items()}
        if key in _LISTED:
            if not isinstance(value, list | tuple):
                raise self._fault(inside, "is no array of schemas")
            return [self._ready(each, f"{inside}/{n}", depth + 1) for n, each in enumerate(value)]
        return value

    def _check(self, schema: Mapping[str, Any], place: str) -> None:
        for kind in _as_list(schema.get("type", [])):
            if not isinstance(kind, str) or kind not in _TYPES:
                raise self._fault(
                    place, f"has the type {kind!r}, which is none of {', '.join(sorted(_TYPES))}"
                )
        reference = schema.get("$ref")
        if reference is not None and not self._is_resolved(reference):
            raise self._fault(place, f"refers to {reference!r}, which is nothing in this schema")
        unenforced = [key for key in _NOT_ENFORCED if schema.get(key) not in (None, False)]
        if len(_as_list(schema.get("allOf", []))) > 1:
            unenforced.append("allOf with several schemas")
        if self._is_exact and unenforced:
            raise self._fault(place, f"uses {', '.join(unenforced)}, which cannot be enforced")

    def _with_pattern(self, schema: dict[str, Any], place: str) -> dict[str, Any]:
        pattern = schema.get("pattern")
        if not isinstance(pattern, str) or (fault := _pattern_fault(pattern)) is None:
            return schema
        if self._is_exact:
            raise self._fault(place, f"has the pattern {pattern!r}, which {fault}")
        return {key: value for key, value in schema.items() if key != "pattern"}

    def _is_resolved(self, reference: Any) -> bool:
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            return False
        value: Any = self._root
        for step in reference.split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(value, Mapping) or step not in value:
                return False
            value = value[step]
        return True

    def _fault(self, place: str, complaint: str) -> BadRequest:
        where = "" if place == "#" else f" at {place}"
        return BadRequest(f"{self._subject}{where} {complaint}")


def _completed(schema: dict[str, Any]) -> dict[str, Any]:
    """Says what a schema leaves open and a strict reading would forbid: required properties that
    nobody describes, and items of any kind."""
    others = schema.get("additionalProperties", True)
    if others is not False:
        properties = schema.get("properties", {})
        required = schema.get("required", [])
        described = properties | {name: others for name in required if name not in properties}
        if described != properties:
            schema = schema | {"properties": described}
    may_be_list = "array" in _as_list(schema.get("type"))
    if may_be_list and not {"items", "prefixItems", "unevaluatedItems"} & schema.keys():
        schema = schema | {"items": {}}
    return schema


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _pattern_fault(pattern: str) -> str | None:
    if _LOOKS_AROUND.search(pattern):
        return "looks ahead or behind: that cannot be enforced"
    counts = [int(number) for pair in _REPEATS.findall(pattern) for number in pair if number]
    if max(counts, default=0) > MAX_PATTERN_REPEATS:
        return f"repeats something {max(counts):,} times; the limit is {MAX_PATTERN_REPEATS:,}"
    return None


def _kind(value: Any) -> str:
    return {str: "a text", list: "an array", type(None): "null"}.get(type(value), "a number")
