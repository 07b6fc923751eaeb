"""Python literals as a model writes them in a call, passed on as JSON while they come."""

from __future__ import annotations

import json
from collections.abc import Callable

from keepwarm.chat.parsing.marks import Marks
from keepwarm.chat.parsing.schema_types import json_of_text
from keepwarm.chat.parsing.source import WHITE_SPACE, Source, Steps

_MAX_WORD_CHARACTERS = 1 << 16
_MAX_DEPTH = 64
_QUOTES = Marks(['"""', "'''", '"', "'"])
_WORD_ENDS = Marks([",", ")", "]", "}", "\n", ":"])
_COLON = Marks([":"])
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "\n": ""}
_CODE_LENGTHS = {"x": 2, "u": 4, "U": 8}
_CLOSERS = {"[": "]", "(": ")", "{": "}"}
_UNKNOWN: frozenset[str] = frozenset()


class PythonReader:
    """Reads literals. Whatever becomes of one, what was written is whole JSON."""

    def __init__(self, source: Source, write: Callable[[str], object]) -> None:
        self._source = source
        self._write = write

    def read_value(self, before: str, *, types: frozenset[str] = _UNKNOWN, depth: int = 0) -> Steps[bool]:
        """`before` goes out with the first of it. False: it is not complete, or is no literal."""
        first = yield from self._source.skip()
        if first in _CLOSERS:
            if depth == _MAX_DEPTH:
                return False
            return (yield from self._read_container(before, first, depth + 1))
        if quote := (yield from self._source.accept(_QUOTES)):
            self._write(before + '"')
            is_whole = yield from self._read_string(quote, self._write)
            self._write('"')
            return is_whole
        return (yield from self._read_word(before, types))

    def _read_container(self, before: str, opener: str, depth: int) -> Steps[bool]:
        closer = _CLOSERS[opener]
        is_object = opener == "{"
        self._source.take(1)
        self._write(before + ("{" if is_object else "["))
        separator, is_whole = "", True
        while is_whole and (yield from self._source.skip(WHITE_SPACE + ",")) not in (closer, ""):
            key = (yield from self._read_key()) if is_object else ""
            is_whole = key is not None and (yield from self.read_value(separator + (key or ""), depth=depth))
            separator = ","
        self._write("}" if is_object else "]")
        is_closed = is_whole and self._source.pending.startswith(closer)
        self._source.take(int(is_closed))
        return is_closed

    def _read_key(self) -> Steps[str | None]:
        """As JSON, with its colon; None where there is none."""
        quote = yield from self._source.accept(_QUOTES)
        written: list[str] = []
        if not quote or not (yield from self._read_string(quote, written.append)):
            return None
        yield from self._source.skip()
        colon = yield from self._source.accept(_COLON)
        return f'"{"".join(written)}":' if colon else None

    def _read_string(self, quote: str, write: Callable[[str], object]) -> Steps[bool]:
        """After the opening quote; up to and with the closing one. Writes the inside as JSON."""
        source, ends = self._source, Marks([quote, "\\"])

        def write_inside(text: str) -> None:
            write(json.dumps(text, ensure_ascii=False)[1:-1])

        while mark := (yield from source.pass_until(ends, write_inside)):
            source.take(len(mark))
            if mark == quote:
                return True
            write_inside((yield from self._read_escape()))
        return False

    def _read_escape(self) -> Steps[str]:
        """After the backslash: what it stands for."""
        source = self._source
        kind = yield from source.next()
        num_digits = _CODE_LENGTHS.get(kind, 0)
        while len(source.pending) <= num_digits and (yield from source.more()):
            pass
        source.take(1)
        if not num_digits:
            return _ESCAPES.get(kind, kind if kind in "\\'\"" else "\\" + kind)
        code = _code_of(source.pending[:num_digits], num_digits)
        if code is None:
            return "\\" + kind
        source.take(num_digits)
        return "\ufffd" if 0xD800 <= code < 0xE000 else chr(code)

    def _read_word(self, before: str, types: frozenset[str]) -> Steps[bool]:
        """A number or a constant; JSON's constants too."""
        word, mark = yield from self._source.read_until(_WORD_ENDS, limit=_MAX_WORD_CHARACTERS)
        word = word.strip()
        if not word:
            return False
        self._write(before + json_of_text(word, types))
        return bool(mark)


def _code_of(digits: str, num_digits: int) -> int | None:
    if len(digits) < num_digits or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
        return None
    code = int(digits, 16)
    return code if code < 0x110000 else None
