"""Qwen3-Coder: `<tool_call><function=NAME><parameter=KEY>\\nVALUE\\n</parameter></function></tool_call>`.

Also without `<tool_call>`, without closing tags, and with JSON inside, as its models do it at times.

Source: the chat template and tool parser of Qwen3-Coder.
"""

from __future__ import annotations

from keepwarm.chat.parsing.hermes import CLOSE, OPEN, read_hermes_block, read_stray
from keepwarm.chat.parsing.marks import Marks
from keepwarm.chat.parsing.markup import MarkupFormat, Reading
from keepwarm.chat.parsing.parameters import ParameterWriter, read_parameter
from keepwarm.chat.parsing.source import Steps

_FUNCTION, _END_FUNCTION = "<function=", "</function>"
_PARAMETER, _END_PARAMETER = "<parameter=", "</parameter>"
_FUNCTIONS = Marks([_FUNCTION])
_END_FUNCTIONS = Marks([_END_FUNCTION])
_PARAMETERS = Marks([_PARAMETER])
_END_PARAMETERS = Marks([_END_PARAMETER, "\n" + _END_PARAMETER])
_VALUE_ENDS = Marks([*_END_PARAMETERS.spellings, "\n" + _PARAMETER, "\n" + _END_FUNCTION])
_NAME_ENDS = Marks([">", "<", "\n"])
_LINE_BREAKS = Marks(["\n"])
_AFTER_CALLS = Marks([OPEN, CLOSE, _FUNCTION])
_CLOSE = Marks([CLOSE])
_MAX_NAME_CHARACTERS = 200


def _read_block(reading: Reading) -> Steps[bool]:
    """What follows `<tool_call>`."""
    source, num_calls = reading.source, 0
    if (yield from source.skip()) in ("{", "["):
        return (yield from read_hermes_block(reading))
    while (yield from source.accept(_FUNCTIONS)):
        if not (yield from _read_function(reading)):
            return False
        num_calls += 1
        source.mark()
        yield from source.skip()
    yield from source.accept(_CLOSE)
    return num_calls > 0


def _read_bare_function(reading: Reading) -> Steps[bool]:
    """What follows a `<function=` that stands alone."""
    if not (yield from _read_function(reading)):
        return False
    yield from reading.source.skip()
    yield from reading.source.accept(_CLOSE)
    return True


def _read_function(reading: Reading) -> Steps[bool]:
    """From the function's name to its end."""
    source, sink = reading.source, reading.sink
    name = yield from _read_name(reading)
    if not name:
        return False
    sink.start_call(name)
    writer = ParameterWriter(reading.tools.get(name), sink.arguments)
    is_whole = yield from _read_parameters(reading, writer)
    writer.close()
    sink.end_call()
    if not is_whole:
        sink.malformed()
        sink.text(source.since_mark())
        yield from source.pass_until(_AFTER_CALLS, sink.text)
    return True


def _read_parameters(reading: Reading, writer: ParameterWriter) -> Steps[bool]:
    """All of them, and the function's closing tag; `</tool_call>` may stand for it.

    Where it is False, what was taken since `source.mark()` belongs to no parameter.
    """
    source = reading.source
    while True:
        yield from source.skip()
        source.mark()
        if (yield from source.accept(_END_FUNCTIONS)):
            return True
        if not (yield from source.accept(_PARAMETERS)):
            return bool((yield from source.peek(_CLOSE)))
        name = yield from _read_name(reading)
        if not name:
            return False
        source.unmark()
        writer.begin(name)
        yield from source.accept(_LINE_BREAKS)
        if not (yield from read_parameter(source, writer, _VALUE_ENDS)):
            return False
        yield from source.accept(_END_PARAMETERS)


def _read_name(reading: Reading) -> Steps[str]:
    """Up to ">", which is taken; "" where that does not come."""
    source = reading.source
    name, mark = yield from source.read_until(_NAME_ENDS, limit=_MAX_NAME_CHARACTERS)
    if mark != ">":
        return ""
    source.take(1)
    return name.strip().strip("\"'")


QWEN3_CODER = MarkupFormat(
    name="qwen3_coder",
    blocks={OPEN: _read_block, CLOSE: read_stray, _FUNCTION: _read_bare_function},
    signs=(_FUNCTION, _PARAMETER),
    control_texts=frozenset({OPEN, CLOSE}),
)
