"""JSON as a model writes it, passed on while it comes, and valid whenever it is closed.

Holds nothing back longer than it must: strings go out as they come, a key or a comma with the
first of its value, a number or a word when its end is seen. Mends what models get wrong and what
can mean only one thing: raw line breaks in strings, needless escapes, `True`, a comma too many.
"""

from __future__ import annotations

import json
import math
import re

_SPACE = re.compile(r"[ \t\r\n]*")
_KEY = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_RUN = re.compile(r'[^"\\\x00-\x1f]+')
_ESCAPE = re.compile(r'\\(?:u[0-9a-fA-F]{4}|["\\/bfnrt])')
_BEGUN_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?")
_LOW_SURROGATE = re.compile(r"\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_BEGUN_LOW_SURROGATE = re.compile(r"\\?|\\u|\\u[dD]|\\u[dD][c-fC-F][0-9a-fA-F]?")
_WORD = re.compile(r'[^\s,:\[\]{}"\\]+')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?")
_WORDS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}

MAX_KEY_CHARACTERS = 1024
_MAX_WORD_CHARACTERS = 64
_MAX_DEPTH = 100  # decoders refuse what is much deeper


class JsonString:
    """The inside of a string, up to its closing quote."""

    def feed(self, text: str, at: int) -> tuple[str, int]:
        """What goes out for the text from `at` on, and where the rest begins: at the closing quote,
        or at an escape that is not complete."""
        written: list[str] = []
        while at < len(text) and text[at] != '"':
            piece, after = self._piece(text, at)
            if after == at:
                break
            written.append(piece)
            at = after
        return "".join(written), at

    def unit(self, text: str, at: int) -> tuple[str, int]:
        """The same for one character or escape."""
        if text[at] != "\\":
            return json.dumps(text[at], ensure_ascii=False)[1:-1], at + 1
        return self._piece(text, at)

    def _piece(self, text: str, at: int) -> tuple[str, int]:
        if run := _RUN.match(text, at):
            return run[0], run.end()
        if text[at] != "\\":
            return json.dumps(text[at])[1:-1], at + 1
        if escape := _ESCAPE.match(text, at):
            return self._escape(escape[0], text, escape.end())
        if _BEGUN_ESCAPE.fullmatch(text, at):
            return "", at
        if text.startswith("\\'", at):
            return "'", at + 2
        return "\\\\", at + 1

    def _escape(self, escape: str, text: str, after: int) -> tuple[str, int]:
        """Half a surrogate pair is no character."""
        code = int(escape[2:], 16) if escape[1] == "u" else 0
        if not 0xD800 <= code < 0xE000:
            return escape, after
        if code < 0xDC00:
            if low := _LOW_SURROGATE.match(text, after):
                return escape + low[0], low.end()
            if _BEGUN_LOW_SURROGATE.fullmatch(text, after):
                return "", after - len(escape)
        return "\\ufffd", after


class JsonStream:
    """One JSON value. Text goes in with `feed`, valid JSON comes out of `take`."""

    def __init__(self, *, only_object: bool = False) -> None:
        """`only_object`: another value than an object is broken from the start."""
        self._only_object = only_object
        self.has_begun = False
        self.is_complete = False
        self.is_broken = False
        """What came next can be no JSON; `close` completes what there is."""
        self._stack: list[str] = []
        """The closers of what is open."""
        self._string: JsonString | None = None
        self._expects_key = False
        self._expects_separator = False
        self._held = ""
        """Comma, key and colon that go out with a value."""
        self._written: list[str] = []
        self._is_last = False

    @property
    def is_open(self) -> bool:
        return not (self.is_complete or self.is_broken)

    def feed(self, text: str, *, is_last: bool = False) -> int:
        """How many characters were read; the rest must come again with what follows it. `is_last`:
        nothing follows."""
        self._is_last = is_last
        at = 0
        while self.is_open and at < len(text):
            after = self._step(text, at)
            if after == at:
                break
            at = after
        return at

    def take(self) -> str:
        """What was written since the last time."""
        written, self._written = "".join(self._written), []
        return written

    def close(self) -> str:
        """What completes the value, `take` included; a member without a value is left out."""
        if self._string is not None:
            self._written.append('"')
        self._written += reversed(self._stack)
        self._string = None
        self._stack.clear()
        self.is_complete = True
        return self.take()

    def _step(self, text: str, at: int) -> int:
        if self._string is not None:
            return self._step_in_string(self._string, text, at)
        at = _match_end(_SPACE, text, at)
        if at == len(text):
            return at
        character = text[at]
        if self._stack and character == self._stack[-1] and (self._expects_separator or not self._has_key):
            return self._end_container(at)
        if self._expects_separator:
            return self._separator(character, at)
        if self._expects_key:
            return self._key(text, at)
        return self._value(text, at)

    @property
    def _has_key(self) -> bool:
        """A key is waiting for its value."""
        return self._held.endswith(":")

    def _step_in_string(self, string: JsonString, text: str, at: int) -> int:
        piece, at = string.feed(text, at)
        self._written.append(piece)
        if text[at : at + 1] == '"':
            self._string = None
            self._write('"')
            self._end_value()
            at += 1
        return at

    def _separator(self, character: str, at: int) -> int:
        if character != ",":
            return self._break(at)
        self._held = ","
        self._expects_separator = False
        self._expects_key = self._stack[-1] == "}"
        return at + 1

    def _key(self, text: str, at: int) -> int:
        key = _KEY.match(text, at)
        if key is None:
            might_come = text[at] == '"' and len(text) - at <= MAX_KEY_CHARACTERS
            return at if might_come else self._break(at)
        after = _match_end(_SPACE, text, key.end())
        if after == len(text):
            return at
        inside = json_string_text(key[0])
        if text[after] != ":" or inside is None:
            return self._break(at)
        self._held += f'"{inside}":'
        self._expects_key = False
        return after + 1

    def _value(self, text: str, at: int) -> int:
        character = text[at]
        if self._only_object and not self._stack and character != "{":
            return self._break(at)
        if character in "{[":
            if len(self._stack) == _MAX_DEPTH:
                return self._break(at)
            self._write(character)
            self._stack.append("}" if character == "{" else "]")
            self._expects_key = character == "{"
            return at + 1
        if character == '"':
            self._write('"')
            self._string = JsonString()
            return at + 1
        return self._word(text, at)

    def _word(self, text: str, at: int) -> int:
        word = _WORD.match(text, at)
        if word is None or len(word[0]) > _MAX_WORD_CHARACTERS:
            return self._break(at)
        if word.end() == len(text) and not self._is_last:
            return at
        spelled = _spell_word(word[0])
        if spelled is None:
            return at if word.end() == len(text) else self._break(at)
        self._write(spelled)
        self._end_value()
        return word.end()

    def _end_container(self, at: int) -> int:
        self._held = ""
        self._write(self._stack.pop())
        self._end_value()
        return at + 1

    def _end_value(self) -> None:
        self.is_complete = not self._stack
        self._expects_separator = True
        self._expects_key = False

    def _write(self, text: str) -> None:
        self._written.append(self._held + text)
        self._held = ""
        self.has_begun = True

    def _break(self, at: int) -> int:
        self.is_broken = True
        return at


def _spell_word(word: str) -> str | None:
    """A number or a constant as JSON has it; None for what is neither, or too great for a float."""
    if _NUMBER.fullmatch(word):
        return word if math.isfinite(float(word)) else None
    return _WORDS.get(word)


def json_string_text(quoted: str) -> str | None:
    """A string as a model wrote it, quotes included, as valid JSON without its quotes."""
    written, at = JsonString().feed(quoted, 1)
    return written if at == len(quoted) - 1 else None


def _match_end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return at if found is None else found.end()
