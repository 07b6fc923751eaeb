"""A call whose name its markup told before: what follows is its arguments, as JSON."""

from __future__ import annotations

import re

from keepwarm.chat.parsing.json_calls import Outcome, read_arguments
from keepwarm.chat.parsing.markup import Reading
from keepwarm.chat.parsing.sink import AnswerSink
from keepwarm.chat.parsing.source import Steps

MAX_NAME_CHARACTERS = 256
_NAME = re.compile(r"[^\s<>{}()\[\]\"'`,;|]{1,256}")


def is_name(text: str) -> bool:
    """Whether it can be a tool's name: one word, without brackets or quotes."""
    return _NAME.fullmatch(text) is not None


def read_named_call(reading: Reading, name: str) -> Steps[Outcome]:
    """At the arguments. The call goes out once they have begun."""
    call = _NamedCall(reading.sink, name)
    is_whole = yield from read_arguments(reading.source, call.write)
    if not call.has_started:
        return "no_call"
    reading.sink.end_call()
    if is_whole:
        return "call"
    reading.sink.malformed()
    return "broken_call"


def call_without_arguments(sink: AnswerSink, name: str) -> None:
    """A whole call."""
    sink.start_call(name)
    sink.arguments("{}")
    sink.end_call()


class _NamedCall:
    """Starts the call with the first of its arguments."""

    def __init__(self, sink: AnswerSink, name: str) -> None:
        self._sink = sink
        self._name = name
        self.has_started = False

    def write(self, arguments: str) -> None:
        if arguments and not self.has_started:
            self.has_started = True
            self._sink.start_call(self._name)
        self._sink.arguments(arguments)
