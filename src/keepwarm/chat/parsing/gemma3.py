"""Gemma 2 and 3, whose templates know no tools: our preamble asks for Hermes' form, but they were
taught others too, and write them at times. These count where they name a declared tool.

    ```tool_code
    print(read(path="a.txt"))
    ```
    [read(path='a.txt'), stat()]

Source: "Function calling with Gemma" in the documentation of Gemma 3.
"""

from __future__ import annotations

import json
import re

from keepwarm.chat.parsing.bare_calls import BARE_CALLS
from keepwarm.chat.parsing.gemma import FUNCTION_OPEN
from keepwarm.chat.parsing.hermes import HERMES
from keepwarm.chat.parsing.marks import Marks
from keepwarm.chat.parsing.markup import MarkupFormat, Reading
from keepwarm.chat.parsing.named_call import is_name
from keepwarm.chat.parsing.python_values import PythonReader
from keepwarm.chat.parsing.schema_types import types_of_parameter
from keepwarm.chat.parsing.source import WHITE_SPACE, Steps

_FENCE, _BRACKET, _TURN = "```", "[", "<start_of_turn>"
_MAX_NAME_CHARACTERS = 256
_FENCES = Marks([_FENCE])
_PARENTHESIS = Marks(["(", "\n", _FENCE])
_LINE_BREAKS = Marks(["\n"])
_AFTER_KEY = Marks(["=", ",", ")", "(", "[", "{", '"', "'", "\n"])
_LANGUAGE = re.compile(r"\s*(?:tool_code|python|py)?\s*")
_MODULE = "default_api."
_PRINT = "print"


def _read_fenced(reading: Reading) -> Steps[bool]:
    """The fence was taken. Code, or else JSON."""
    source = reading.source
    language, _ = yield from source.read_until(_LINE_BREAKS, limit=_MAX_NAME_CHARACTERS)
    if _LANGUAGE.fullmatch(language):
        outcome = yield from _read_calls(reading)
        if outcome is not None:
            yield from source.skip()
            yield from source.accept(_FENCES)
            return outcome
    source.put_back()
    source.mark()
    source.take(len(_FENCE))
    return (yield from BARE_CALLS[_FENCE](reading))


def _read_bracket(reading: Reading) -> Steps[bool]:
    """The bracket was taken. Calls, or else JSON."""
    outcome = yield from _read_calls(reading)
    if outcome is not None:
        return outcome
    reading.source.put_back()
    reading.source.mark()
    reading.source.take(len(_BRACKET))
    return (yield from BARE_CALLS[_BRACKET](reading))


def _read_calls(reading: Reading) -> Steps[bool | None]:
    """One or several; brackets and `print` around them are not looked at. None: there is none, and
    what was taken is to be put back."""
    source = reading.source
    has_called = False
    while (yield from source.skip(WHITE_SPACE + "[];,")) not in ("", "`"):
        name = yield from _read_name(reading)
        if name is None:
            if has_called:
                source.put_back()
            break
        has_called = True
        if not (yield from _read_call(reading, name)):
            break
        yield from source.skip(WHITE_SPACE + ")],;")
        source.mark()
    return has_called or None


def _read_name(reading: Reading) -> Steps[str | None]:
    """A declared tool's, with the parenthesis after it; None where there is none."""
    source = reading.source
    while True:
        head, mark = yield from source.read_until(_PARENTHESIS, limit=_MAX_NAME_CHARACTERS)
        if mark != "(":
            return None
        source.take(1)
        name = head.strip().removeprefix(_MODULE)
        if name != _PRINT:
            return name if name in reading.tools else None


def _read_call(reading: Reading, name: str) -> Steps[bool]:
    """After the parenthesis. False: it was closed early."""
    source, sink, tool = reading.source, reading.sink, reading.tools[name]
    sink.start_call(name)
    sink.arguments("{")
    values = PythonReader(source, sink.arguments)
    separator, is_whole = "", True
    while is_whole and (yield from source.skip(WHITE_SPACE + ",")) not in (")", ""):
        key, mark = yield from source.read_until(_AFTER_KEY, limit=_MAX_NAME_CHARACTERS)
        is_whole = mark == "=" and is_name(key.strip())
        if is_whole:
            source.take(len(mark))
            types = types_of_parameter(tool, key.strip())
            before = f"{separator}{json.dumps(key.strip(), ensure_ascii=False)}:"
            is_whole = yield from values.read_value(before, types=types)
            separator = ","
    sink.arguments("}")
    sink.end_call()
    is_closed = is_whole and source.pending.startswith(")")
    source.take(int(is_closed))
    if not is_closed:
        sink.malformed()
    return is_closed


GEMMA3 = MarkupFormat(
    name="gemma3",
    blocks=HERMES.blocks,
    bare_blocks={_FENCE: _read_fenced, _BRACKET: _read_bracket},
    signs=(_TURN,),
    other_signs=(FUNCTION_OPEN, "<tool_call>"),
    control_texts=HERMES.control_texts,
)
