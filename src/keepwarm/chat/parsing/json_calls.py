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
    while (key := (yield from _read_key(source))) is not None:
        if key in NAME_KEYS and call.name is None:
            call.name = yield from _read_string(source)
            if not call.name or (only_declared and call.name not in reading.tools):
                return "no_call"
        elif key in ARGUMENTS_KEYS and not has_arguments:
            has_arguments = True
            if not (yield from read_arguments(source, call.write)):
                return _end_early(call, reading.sink)
        elif only_declared and key not in _KEYS_BESIDE:
            return "no_call"
        elif not (yield from _pass_json(source, _drop)):
            break
        call.go_on()
        if (yield from source.skip()) != ",":
            break
        source.take(1)
    return (yield from _end(reading, call, has_arguments, only_declared))


def _end(reading: Reading, call: _Call, has_arguments: bool, only_declared: bool) -> Steps[Outcome]:
    """After the last member: a call that lacks only its closing brace is one."""
    closes = (yield from reading.source.skip()) == "}"
    if closes:
        reading.source.take(1)
    if call.name is None or not (has_arguments or (closes and not only_declared)):
        return "no_call"
    if not has_arguments:
        call.write("{}")
    reading.sink.end_call()
    return "call"


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
    outside, inside, waiting = JsonString(), JsonStream(only_object=True), ""
    while True:
        piece, num_taken = outside.feed(source.pending, 0)
        source.take(num_taken)
        waiting += json.loads(f'"{piece}"')
        is_closed = source.pending.startswith('"')
        is_last = is_closed or source.has_ended
        waiting = waiting[inside.feed(waiting, is_last=is_last) :]
        write(inside.take())
        if is_last or inside.is_broken:
            break
        yield from source.more()
    source.take(1 if is_closed else 0 if inside.is_broken else len(source.pending))
    is_whole = is_closed and not waiting.strip(WHITE_SPACE) and (inside.is_complete or not inside.has_begun)
    write(inside.close() if inside.has_begun else "{}" if is_whole else "")
    return is_whole


_STRING_ENDS = Marks(['"', '\\"', "\\\\"])
_NULL = Marks(["null", "None"])
