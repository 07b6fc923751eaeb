"""The top level of a JSON body: its fields decoded one by one, so that a wrong one is named with
its path, its value and what is allowed, and one we do not know is counted and ignored."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any, TypeVar

import msgspec

from keepwarm.core.errors import BadRequest
from keepwarm.dialects.errors import BadField

T = TypeVar("T")

_SHOWN_CHARACTERS = 60
_HUGE = 2**31 - 1
_top_level = msgspec.json.Decoder(dict[str, msgspec.Raw])
_BOOL = msgspec.json.Decoder(bool)
_INT = msgspec.json.Decoder(int)
_FLOAT = msgspec.json.Decoder(float)
_STR = msgspec.json.Decoder(str)
_STRINGS: msgspec.json.Decoder[str | list[str]] = msgspec.json.Decoder(str | list[str])

_TYPE_NAMES = {
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "object": "object",
    "array": "array",
}
_PATH = re.compile(r" - at `\$(?P<path>[^`]*)`$")
_STEP = re.compile(r"\[(?P<index>\d+)\]|\.(?P<name>[^.\[]+)")
_EXPECTED = re.compile(r"^Expected `(?P<expected>[^`]*)`")
_MISSING = re.compile(r"^Object missing required field `(?P<name>[^`]*)`")
_SURROGATES = re.compile(
    rb"(?P<pair>\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?P<lone>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
    rb"|\\."
)


class JsonBody:
    """One body. A field that is null counts as absent."""

    def __init__(self, body: bytes) -> None:
        self._fields = _decode_top_level(body)
        self._seen: set[str] = set()

    def required(self, name: str, decoder: msgspec.json.Decoder[T]) -> T:
        """The field's value. Raises `BadField` when it is absent or of another type."""
        value = self.optional(name, decoder)
        if value is None:
            raise BadField(name, "required")
        return value

    def optional(self, name: str, decoder: msgspec.json.Decoder[T]) -> T | None:
        """The field's value, or None. Raises `BadField` when it is of another type."""
        self._seen.add(name)
        raw = self._fields.get(name)
        if raw is None:
            return None
        piece = bytes(raw)
        if piece == b"null":
            return None
        return _decode_field(name, piece, decoder)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """A boolean, `default` unless set."""
        value = self.optional(name, _BOOL)
        return default if value is None else value

    def text(self, name: str) -> str | None:
        return self.optional(name, _STR)

    def number(self, name: str, *, low: float, high: float) -> float | None:
        """A number with low <= number <= high."""
        value = self.optional(name, _FLOAT)
        if value is not None and not low <= value <= high:
            raise BadField(name, f"must be between {low:g} and {high:g}, got {shown(value)}")
        return value

    def integer(self, name: str, *, low: int, high: int | None = None) -> int | None:
        """An integer with low <= integer <= high; without `high`, beyond all use is as good as huge."""
        value = self.optional(name, _INT)
        if value is None:
            return None
        if high is None and value < low:
            raise BadField(name, f"must be at least {low}, got {value}")
        if high is not None and not low <= value <= high:
            raise BadField(name, f"must be between {low} and {high}, got {value}")
        return value if high is not None else min(value, _HUGE)

    def model(self) -> str:
        """The field `model`, which every dialect needs."""
        model = self.text("model")
        if not model:
            raise BadField("model", "required")
        return model

    def stop(self, name: str) -> tuple[str, ...]:
        """Stop strings: one, or a list."""
        sent = self.optional(name, _STRINGS)
        stop = (sent,) if isinstance(sent, str) else tuple(sent or ())
        for index, sequence in enumerate(stop):
            if not sequence:
                raise BadField(f"{name}.{index}", 'must not be empty, got ""')
        return stop

    def unknown(self, also_known: Collection[str]) -> list[str]:
        """Names of fields that nobody asked for and that are not among `also_known`."""
        return [name for name in self._fields if name not in self._seen and name not in also_known]


def shown(value: Any) -> str:
    """A value for an error message, cut short."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"


def one_of(field: str, value: str, allowed: Sequence[str]) -> BadField:
    """The error for a value outside a fixed list."""
    return BadField(field, f"{shown(value)} is not one of {', '.join(allowed)}")


def _decode_top_level(body: bytes) -> dict[str, msgspec.Raw]:
    try:
        return _top_level.decode(body)
    except msgspec.ValidationError as error:
        raise BadRequest("the body must be a JSON object") from error
    except msgspec.DecodeError as error:
        mended = _mend_surrogates(body)
        if mended != body:
            return _decode_top_level(mended)
        raise BadRequest(f"the body is not valid JSON: {error}") from error
    except RecursionError as error:
        raise BadRequest("the body is nested too deeply") from error


def _mend_surrogates(body: bytes) -> bytes:
    """Half characters become U+FFFD: clients that cut text inside an emoji send them, and an
    error would come again with every later turn of that conversation."""
    return _SURROGATES.sub(lambda match: rb"\ufffd" if match["lone"] else match[0], body)


def _decode_field(name: str, piece: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return decoder.decode(piece)
    except msgspec.ValidationError as error:
        raise _wrong_field(name, piece, str(error)) from error
    except msgspec.DecodeError as error:
        mended = _mend_surrogates(piece)
        if mended != piece:
            return _decode_field(name, mended, decoder)
        raise BadField(name, f"not valid JSON: {error}") from error
    except RecursionError as error:
        raise BadField(name, "nested too deeply") from error


def _wrong_field(name: str, piece: bytes, message: str) -> BadField:
    """What msgspec found, with the value it stumbled over."""
    at = _PATH.search(message)
    steps = [match["index"] or match["name"] for match in _STEP.finditer(at["path"])] if at else []
    field = ".".join([name, *steps])
    missing = _MISSING.match(message)
    if missing:
        return BadField(f"{field}.{missing['name']}", "required")
    expected = _EXPECTED.match(message)
    if expected is None:
        return BadField(field, message.split(" - at ")[0])
    kinds = [_TYPE_NAMES.get(kind, kind) for kind in expected["expected"].split(" | ") if kind != "null"]
    value = _value_at(piece, steps)
    return BadField(field, f"must be of type {' or '.join(kinds)}, got {value}")


def _value_at(piece: bytes, steps: Sequence[str]) -> str:
    value: Any = msgspec.json.decode(piece)
    try:
        for step in steps:
            value = value[int(step)] if isinstance(value, list) else value[step]
    except (KeyError, IndexError, ValueError, TypeError):
        return "another type"
    return shown(value)
