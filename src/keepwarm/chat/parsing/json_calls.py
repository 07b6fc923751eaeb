"""Calls that are JSON objects: `{"name": …, "arguments": {…}}`, and what models make of them.

Name and arguments may come in either order, the arguments under another key or as a string that
holds JSON, several objects one after the other or in an array.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from keepwarm.chat.parsing.json_stream import JsonStream, JsonString, json_string_text
from keepwarm.chat.parsing.marks import Marks
from keepwarm.chat.parsing.reading import Reading
from keepwarm.chat.parsing.sink import AnswerSink
from keepwarm.chat.parsing.source import WHITE_SPACE, Source, Steps

NAME_KEYS = ("name",)
ARGUMENTS_KEYS = ("arguments", "parameters")
_KEYS_BESIDE = ("id", "type", "index")
_MAX_STRING_CHARACTERS = 1024

Outcome = Literal["call", "broken_call", "no_call"]
"""broken_call: its arguments were closed early; what follows in its place belongs to nothing."""


def read_json_calls(reading: Reading, *, only_declared: bool = False) -> Steps[Outcome]:
    """One object, several with commas, semicolons or nothing between them, or an array of them.

    "no_call": what was taken since `source.mark()` is none. `only_declared`: only what looks like a
    call in every respect and names a declared tool is one.
    """
    source = reading.source
    outcome: Outcome = "no_call"
    if (yield from source.skip()) == "[":
        source.take(1)
    while (yield from source.skip(WHITE_SPACE if outcome == "no_call" else WHITE_SPACE + ",;")) == "{":
        one = yield from _read_call(reading, only_declared)
        if one != "call":
            return one
        outcome = "call"
        source.mark()
    if outcome == "call":
        yield from source.skip(WHITE_SPACE + "}]")  # a bracket too many is not worth a word
    return outcome


def read_arguments(source: Source, write: Callable[[str], object]) -> Steps[bool]:
    """An object, a string that holds one, or null.

    False: it was not read to its end. What was written then is one whole object all the same, or
    nothing where none had begun.
    """
    first = yield from source.next()
    if first == '"':
        return (yield from _read_quoted_object(source, write))
    if first == "{":
        return (yield from _pass_json(source, write))
    if (yield from source.accept(_NULL)):
        write("{}")
        return True
    return False


@dataclass(slots=True, kw_only=True)
class _Call:
    """One call's beginning: it goes out as soon as both its name and its arguments have begun."""

    sink: AnswerSink
    name: str | None = None
    has_started: bool = False
    _waiting: list[str] = field(default_factory=list)

    def write(self, arguments: str) -> None:
        if arguments:
            self._waiting.append(arguments)
            self.go_on()

    def go_on(self) -> None:
        """Sends what may be sent now."""
        if self.name is None or not self._waiting:
            return
        if not self.has_started:
            self.has_started = True
            self.sink.start_call(self.name)
        self.sink.arguments("".join(self._waiting))
        self._waiting.clear()


def _read_call(reading: Reading, only_declared: bool) -> Steps[Outcome]:
    """At "{"."""
    source, call = reading.source, _Call(sink=reading.sink)
    source.take(1)
    has_arguments = False
    while not (has_arguments and call.name) and (key := (yield from _read_key(source))) is not None:
        if key in NAME_KEYS and call.name is None:
            call.name = yield from _read_string(source)
            if not call.name or (only_declared and call.name not in reading.tools):
                return "no_call"
            call.go_on()
        elif key in ARGUMENTS_KEYS and not has_arguments:
            has_arguments = True
            if not (yield from read_arguments(source, call.write)):
                return _end_early(call, reading.sink)
        elif (only_declared and key not in _KEYS_BESIDE) or not (yield from _pass_json(source, _drop)):
            return "no_call"
        if not (has_arguments and call.name) and not (yield from _take_comma(source)):
            break
    if has_arguments and call.name:
        return (yield from _end(reading))
    return "no_call" if only_declared else (yield from _end_without_arguments(reading, call))


def _end(reading: Reading) -> Steps[Outcome]:
    """The call is whole, and goes out; what else the object holds is nothing to it. One that lacks
    only its closing brace is a call."""
    source, sink = reading.source, reading.sink
    sink.end_call()
    source.mark()
    while (yield from _take_comma(source)):
        if (yield from _read_key(source)) is None or not (yield from _pass_json(source, _drop)):
            break
    if (yield from source.skip()) == "}":
        source.take(1)
    else:
        sink.text(source.since_mark())
    return "call"


def _end_without_arguments(reading: Reading, call: _Call) -> Steps[Outcome]:
    if call.name is None or (yield from reading.source.skip()) != "}":
        return "no_call"
    reading.source.take(1)
    call.write("{}")
    reading.sink.end_call()
    return "call"


def _take_comma(source: Source) -> Steps[bool]:
    comes = (yield from source.skip()) == ","
    source.take(int(comes))
    return comes


def _end_early(call: _Call, sink: AnswerSink) -> Outcome:
    if not call.has_started:
        return "no_call"
    sink.end_call()
    sink.malformed()
    return "broken_call"


def _drop(_written: str) -> None:
    """For a member that a call does not need."""


def _read_key(source: Source) -> Steps[str | None]:
    """A key and its colon; None where there is none."""
    if (yield from source.skip()) != '"':
        return None
    key = yield from _read_string(source)
    if (yield from source.skip()) != ":" or key is None:
        return None
    source.take(1)
    yield from source.skip()
    return key


def _read_string(source: Source) -> Steps[str | None]:
    """A short string; None where there is none."""
    if (yield from source.next()) != '"':
        return None
    quoted = source.take(1)
    while len(quoted) <= _MAX_STRING_CHARACTERS:
        before, mark = yield from source.read_until(_STRING_ENDS, limit=_MAX_STRING_CHARACTERS)
        quoted += before + source.take(len(mark))
        if mark == '"':
            inside = json_string_text(quoted)
            return None if inside is None else str(json.loads(f'"{inside}"'))
        if not mark:
            return None
    return None


def _pass_json(source: Source, write: Callable[[str], object]) -> Steps[bool]:
    """A value, written as it comes; closed where it is not read to its end."""
    stream = JsonStream()
    while True:
        source.take(stream.feed(source.pending, is_last=source.has_ended))
        write(stream.take())
        if not stream.is_open or source.has_ended:
            break
        yield from source.more()
    is_whole = stream.is_complete
    if stream.is_open:
        source.take(len(source.pending))  # half of an escape, a number or a key
    write(stream.close())
    return is_whole


def _read_quoted_object(source: Source, write: Callable[[str], object]) -> Steps[bool]:
    """Arguments as a string that holds JSON; an empty one holds none."""
    source.take(1)
    inside = _QuotedObject()
    while True:
        source.take(inside.feed(source.pending))
        is_closed = source.pending.startswith('"')
        has_ended = is_closed or source.has_ended
        is_whole = inside.end() if has_ended else False
        write(inside.stream.take())
        if has_ended or inside.stream.is_broken:
            break
        yield from source.more()
    if inside.stream.is_broken:
        source.untake(inside.unread)
    else:
        source.take(1 if is_closed else len(source.pending))
    is_whole = is_whole and is_closed
    write(inside.stream.close() if inside.stream.has_begun else "{}" if is_whole else "")
    return is_whole


class _QuotedObject:
    """What a string holds, character by character, so that it is known where it stops being JSON."""

    def __init__(self) -> None:
        self.stream = JsonStream(only_object=True)
        self.unread = ""
        """The end of the string, as written, that the object has not taken."""
        self._waiting = ""
        """The same, as it is meant."""
        self._string = JsonString()

    def feed(self, text: str) -> int:
        """How many characters were read, up to the closing quote at most."""
        at = 0
        while at < len(text) and text[at] != '"' and not self.stream.is_broken:
            piece, after = self._string.unit(text, at)
            if after == at:
                break
            self.unread += text[at:after]
            self._waiting += json.loads(f'"{piece}"')
            self._pass_on(is_last=False)
            at = after
        return at

    def end(self) -> bool:
        """Nothing follows; whether the string held one object, or nothing."""
        self._pass_on(is_last=True)
        is_rest = bool(self._waiting.strip(WHITE_SPACE))
        return not is_rest and (self.stream.is_complete or not self.stream.has_begun)

    def _pass_on(self, *, is_last: bool) -> None:
        self._waiting = self._waiting[self.stream.feed(self._waiting, is_last=is_last) :]
        if not self._waiting:
            self.unread = ""


_STRING_ENDS = Marks(['"', '\\"', "\\\\"])
_NULL = Marks(["null", "None"])
