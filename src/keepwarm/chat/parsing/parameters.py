"""Arguments that come as named texts, as in XML-like markup: one JSON object, written as they come."""

from __future__ import annotations

import json
from collections.abc import Callable

from keepwarm.chat.messages import ToolSpec
from keepwarm.chat.parsing.marks import Marks
from keepwarm.chat.parsing.schema_types import json_of_cut_text, json_of_text, types_of_parameter
from keepwarm.chat.parsing.source import Source, Steps

ONLY_STRING = frozenset({"string"})


class ParameterWriter:
    """One call's arguments. Each value has the type that the tool's schema gives it; where that is
    no secret a string goes out as it comes, anything else at its end."""

    def __init__(self, tool: ToolSpec | None, write: Callable[[str], object]) -> None:
        """`tool` is None for a name that nobody declared. Call `close` once, last."""
        self._tool = tool
        self._write = write
        self._opening = "{"
        self._types: frozenset[str] | None = None
        self._value: list[str] = []

    def begin(self, name: str, types: frozenset[str] | None = None) -> None:
        """The next parameter. `types`: what the markup itself says of it; the schema otherwise."""
        self._types = types_of_parameter(self._tool, name) if types is None else types
        self._opening += _quoted(name) + ":"
        if self._types == ONLY_STRING:
            self._out('"')

    def add(self, text: str) -> None:
        """More of its value."""
        if self._types == ONLY_STRING:
            self._out(_quoted(text)[1:-1])
        else:
            self._value.append(text)

    def end(self) -> None:
        """Its value is complete."""
        self._end(json_of_text)

    def close(self) -> None:
        """The arguments are complete, or never will be: then the open value is closed as it is."""
        if self._types is not None:
            self._end(json_of_cut_text)
        self._out("}" if self._opening == "," else "{}")

    def _end(self, to_json: Callable[[str, frozenset[str]], str]) -> None:
        assert self._types is not None
        if self._types == ONLY_STRING:
            self._out('"')
        else:
            self._out(to_json("".join(self._value), self._types))
        self._types = None
        self._value.clear()
        self._opening = ","

    def _out(self, text: str) -> None:
        if self._types is not None:
            opening, self._opening = self._opening, ""
            text = opening + text
        self._write(text)


def read_parameter(
    source: Source, writer: ParameterWriter, ends: Marks, *, types: frozenset[str] | None = None
) -> Steps[str]:
    """After `writer.begin`: the value up to one of the marks, which is told and not taken.

    Marks may begin with the line break that is layout. "" is told at the end of the answer, and the
    parameter is left open for `close`.
    """
    mark = yield from source.pass_until(ends, writer.add)
    if mark:
        writer.end()
    return mark


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
