"""Calls that a model wrote without its markup: bare JSON, or JSON in a Markdown fence.

They count where they begin a line and name a declared tool; anything else is text as written.
"""

from __future__ import annotations

from collections.abc import Mapping

from keepwarm.chat.parsing.json_calls import read_json_calls
from keepwarm.chat.parsing.marks import Marks
from keepwarm.chat.parsing.reading import ReadBlock, Reading
from keepwarm.chat.parsing.source import Steps

_FENCE = "```"
_FENCES = Marks([_FENCE])
_LINE_BREAKS = Marks(["\n"])
_MAX_LANGUAGE_CHARACTERS = 20


def _read_bare(reading: Reading) -> Steps[bool]:
    """The bracket was taken."""
    reading.source.put_back()
    reading.source.mark()
    return (yield from read_json_calls(reading, only_declared=True)) != "no_call"


def _read_fenced(reading: Reading) -> Steps[bool]:
    """The fence was taken; a language and a line break may follow it."""
    source = reading.source
    language, line_break = yield from source.read_until(_LINE_BREAKS, limit=_MAX_LANGUAGE_CHARACTERS)
    if not line_break or not (language.strip().isidentifier() or not language.strip()):
        return False
    outcome = yield from read_json_calls(reading, only_declared=True)
    if outcome == "call":
        yield from source.skip()
        yield from source.accept(_FENCES)
    return outcome != "no_call"


BARE_CALLS: Mapping[str, ReadBlock] = {"{": _read_bare, "[": _read_bare, _FENCE: _read_fenced}
