"""Tools that take free text (a patch, a program) instead of JSON.

Models here are trained on functions, so such a tool is offered as a function of one string, and
the string is taken out of the call's arguments again, piece by piece as it is written.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from keepwarm.chat.messages import ToolSpec

_PARAMETER = "input"
_OPENING = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_ESCAPE_LENGTH = 6  # of \uXXXX
_FIRST_HALVES = ("d8", "d9", "da", "db")
"""How the first of two escapes begins that make one character."""


class CustomFormatIn(msgspec.Struct):
    """A grammar the text must follow, or none."""

    type: str = "text"
    syntax: str | None = None
    definition: str | None = None


def custom_tool(name: str, description: str | None, form: CustomFormatIn | None) -> ToolSpec:
    """The function that stands for the tool. A grammar is told in words."""
    words = [description] if description else []
    if form is not None and form.definition:
        words.append(f"The input follows this {form.syntax or 'lark'} grammar:\n{form.definition}")
    schema = {
        "type": "object",
        "properties": {_PARAMETER: {"type": "string"}},
        "required": [_PARAMETER],
        "additionalProperties": False,
    }
    return ToolSpec(name=name, description="\n\n".join(words), parameters=schema)


def custom_arguments(text: str) -> dict[str, Any]:
    """The arguments of the call whose free text came back."""
    return {_PARAMETER: text}


class CustomInput:
    """The free text of one call, from its arguments as they come."""

    def __init__(self) -> None:
        self._json = ""
        self._read_to: int | None = None
        """How far the string is taken out; None before it began."""
        self._closed = False
        self.text = ""

    def feed(self, piece: str) -> str:
        """What is certain now."""
        if self._closed:
            return ""
        self._json += piece
        if self._read_to is None:
            opening = _OPENING.match(self._json)
            if opening is None:
                return ""
            self._read_to = opening.end()
        text, self._read_to, self._closed = _string_from(self._json, self._read_to)
        self.text += text
        return text

    def finish(self) -> str:
        """The rest: arguments that did not begin as they should are read as a whole."""
        if self._read_to is not None:
            return ""
        self.text = _text_of(self._json)
        return self.text


def custom_text(arguments: str) -> str:
    """The free text of a call's complete arguments."""
    reader = CustomInput()
    reader.feed(arguments)
    reader.finish()
    return reader.text


def _string_from(text: str, start: int) -> tuple[str, int, bool]:
    """What can be read of a JSON string from `start`, where reading goes on, and whether it closed."""
    end = start
    while end < len(text) and text[end] != '"':
        step = _unit_length(text, end)
        if step is None:
            break
        end += step
    closed = end < len(text) and text[end] == '"'
    return _unescaped(text[start:end]), end, closed


def _unit_length(text: str, at: int) -> int | None:
    """Length of the JSON character at this place; None while it may not be whole."""
    if text[at] != "\\":
        return 1
    if at + 1 >= len(text):
        return None
    if text[at + 1] != "u":
        return 2
    after = at + _ESCAPE_LENGTH
    if len(text) < after:
        return None
    if text[at + 2 : at + 4].lower() not in _FIRST_HALVES:
        return _ESCAPE_LENGTH
    other_half = text[after : after + _ESCAPE_LENGTH]
    if other_half.startswith("\\u"):
        return 2 * _ESCAPE_LENGTH if len(other_half) == _ESCAPE_LENGTH else None
    return None if other_half in ("", "\\") else _ESCAPE_LENGTH


def _unescaped(string: str) -> str:
    try:
        text: str = json.loads(f'"{string}"', strict=False)
    except ValueError:
        return string
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _text_of(arguments: str) -> str:
    """The one text in arguments of another shape; all of them where there is none."""
    try:
        values = list(msgspec.json.decode(arguments or "{}", type=dict[str, Any]).values())
    except (msgspec.DecodeError, RecursionError):
        return arguments
    if not values:
        return ""
    return values[0] if len(values) == 1 and isinstance(values[0], str) else arguments
