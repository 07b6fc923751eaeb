"""Gemma's notation for values, passed on as JSON while it comes."""

from __future__ import annotations

import json
from collections.abc import Callable

from keepwarm.chat.messages import ToolSpec
from keepwarm.chat.parsing.json_stream import JsonString
from keepwarm.chat.parsing.marks import Marks
from keepwarm.chat.parsing.schema_types import json_of_text, types_of_parameter
from keepwarm.chat.parsing.source import WHITE_SPACE, Source, Steps

_MAX_KEY_CHARACTERS = 1024
_MAX_WORD_CHARACTERS = 1 << 20
_MAX_DEPTH = 64
_KEY_ENDS = Marks([":", "{", "}"])
_WORD_ENDS = Marks([",", "}", "]"])
_UNKNOWN: frozenset[str] = frozenset()


class ValueReader:
    """Reads values of one call. Whatever becomes of it, what was written is whole JSON."""

    def __init__(self, source: Source, write: Callable[[str], object], delimiter: str) -> None:
        self._source = source
        self._write = write
        self._delimiter = Marks([delimiter])
        self._delimiter_text = delimiter
        self.unread = ""
        """What was taken for a key and was none."""

    def read_arguments(self, tool: ToolSpec | None) -> Steps[bool]:
        """At the "{". False: the object was not read to its end, and was closed."""
        return (yield from self._read_object("", 0, tool))

    def _read_object(self, before: str, depth: int, tool: ToolSpec | None = None) -> Steps[bool]:
        self._source.take(1)
        self._write(before + "{")
        separator = ""
        while (character := (yield from self._source.skip(WHITE_SPACE + ","))) not in ("}", ""):
            key = yield from self._read_key()
            if key is None:
                break
            types = types_of_parameter(tool, key) if tool is not None else _UNKNOWN
            before = f"{separator}{json.dumps(key, ensure_ascii=False)}:"
            if not (yield from self._read_value(before, depth, types)):
                character = ""
                break
            separator = ","
        self._write("}")
        return self._close("}", character)

    def _read_array(self, before: str, depth: int) -> Steps[bool]:
        self._source.take(1)
        self._write(before + "[")
        separator = ""
        while (character := (yield from self._source.skip(WHITE_SPACE + ","))) not in ("]", ""):
            if not (yield from self._read_value(separator, depth, _UNKNOWN)):
                character = ""
                break
            separator = ","
        self._write("]")
        return self._close("]", character)

    def _close(self, closer: str, character: str) -> bool:
        if character != closer:
            return False
        self._source.take(1)
        return True

    def _read_key(self) -> Steps[str | None]:
        """A key and its colon; None where there is none."""
        yield from self._source.accept(self._delimiter)
        key, mark = yield from self._source.read_until(_KEY_ENDS, limit=_MAX_KEY_CHARACTERS)
        if mark != ":":
            self.unread = key if mark else ""
            return None
        self._source.take(1)
        return key.strip().removesuffix(self._delimiter_text).strip("\"'")

    def _read_value(self, before: str, depth: int, types: frozenset[str]) -> Steps[bool]:
        """`before` goes out with the first of it. False: something is not complete."""
        first = yield from self._source.skip()
        if first in ("{", "["):
            if depth == _MAX_DEPTH:
                return False
            read = self._read_object if first == "{" else self._read_array
            return (yield from read(before, depth + 1))
        if first == '"':
            return (yield from self._read_json_string(before))
        if (yield from self._source.accept(self._delimiter)):
            return (yield from self._read_delimited(before, types))
        return (yield from self._read_word(before, types))

    def _read_delimited(self, before: str, types: frozenset[str]) -> Steps[bool]:
        """A string; of a type that is none, what it says."""
        if types and "string" not in types:
            text, mark = yield from self._source.read_until(self._delimiter, limit=_MAX_WORD_CHARACTERS)
            self._write(before + json_of_text(text, types))
        else:
            self._write(before + '"')
            mark = yield from self._source.pass_until(self._delimiter, self._write_inside)
            self._write('"')
        self._source.take(len(mark))
        return bool(mark)

    def _write_inside(self, text: str) -> None:
        self._write(json.dumps(text, ensure_ascii=False)[1:-1])

    def _read_json_string(self, before: str) -> Steps[bool]:
        source, inside = self._source, JsonString()
        source.take(1)
        self._write(before + '"')
        while True:
            piece, num_taken = inside.feed(source.pending, 0)
            source.take(num_taken)
            self._write(piece)
            is_closed = source.pending.startswith('"')
            if is_closed or not (yield from source.more()):
                break
        source.take(int(is_closed))
        self._write('"')
        return is_closed

    def _read_word(self, before: str, types: frozenset[str]) -> Steps[bool]:
        """A number, a constant, or a string without delimiters."""
        word, mark = yield from self._source.read_until(_WORD_ENDS, limit=_MAX_WORD_CHARACTERS)
        word = word.strip()
        if mark and not word:
            self._write(before + "null")
        elif mark or word:
            self._write(before + json_of_text(word, types))
        return bool(mark)
