"""DeepSeek V3, R1 and V3.1: calls between `<｜tool▁calls▁begin｜>` and `<｜tool▁calls▁end｜>`.

    V3.1    name<｜tool▁sep｜>{…}
    V3, R1  function<｜tool▁sep｜>name\\n```json\\n{…}\\n```

Source: the chat templates of those models.
"""

from __future__ import annotations

from keepwarm.chat.parsing.marks import Marks
from keepwarm.chat.parsing.markup import MarkupFormat, Reading
from keepwarm.chat.parsing.named_call import (
    MAX_NAME_CHARACTERS,
    call_without_arguments,
    is_name,
    read_named_call,
)
from keepwarm.chat.parsing.source import WHITE_SPACE, Steps

CALLS, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"

_KIND = "function"
_FENCE = "```"
_AFTER_KIND = Marks([SEPARATOR, CALL_END, CALLS_END])
_AFTER_NAME = Marks(["\n", "{", _FENCE, CALL_END, CALLS_END])
_FENCES = Marks([_FENCE + "json", _FENCE])
_CALL = Marks([CALL])
_CALL_END = Marks([CALL_END])
_CALLS_END = Marks([CALLS_END])
_ENDS = Marks([CALL, CALL_END, CALLS_END])


def read_calls(reading: Reading) -> Steps[bool]:
    """What follows the mark that opens a block of calls."""
    source = reading.source
    has_called = False
    while True:
        yield from source.skip()
        if not (yield from source.accept(_CALL)):
            break
        if not (yield from _read_call(reading)):
            return False
        source.mark()
        has_called = True
    yield from source.accept(_CALLS_END)
    return has_called


def read_call(reading: Reading) -> Steps[bool]:
    """What follows the mark of one call, where that of the block was left out."""
    if not (yield from _read_call(reading)):
        return False
    yield from reading.source.skip()
    yield from reading.source.accept(_CALLS_END)
    return True


def _read_call(reading: Reading) -> Steps[bool]:
    source = reading.source
    name = yield from _read_name(reading)
    if not is_name(name):
        return False
    outcome = yield from read_named_call(reading, name)
    if outcome == "no_call" and (yield from source.accept(_CALL_END)):
        call_without_arguments(reading.sink, name)
        return True
    if outcome == "broken_call":
        yield from source.pass_until(_ENDS, reading.sink.text)
    elif outcome == "call":
        yield from source.skip(WHITE_SPACE + "`")
    yield from source.accept(_CALL_END)
    return outcome != "no_call"


def _read_name(reading: Reading) -> Steps[str]:
    """Up to the arguments; "" where there is none."""
    source = reading.source
    kind, mark = yield from source.read_until(_AFTER_KIND, limit=MAX_NAME_CHARACTERS)
    if mark != SEPARATOR:
        return ""
    source.take(len(mark))
    if (yield from source.skip()) == "{" or kind.strip() != _KIND:
        return kind.strip()
    name, _ = yield from source.read_until(_AFTER_NAME, limit=MAX_NAME_CHARACTERS)
    yield from source.skip()
    yield from source.accept(_FENCES)
    yield from source.skip()
    return name.strip()


DEEPSEEK_V3 = MarkupFormat(
    name="deepseek_v3",
    blocks={CALLS: read_calls, CALL: read_call},
    signs=(CALL, SEPARATOR),
    control_texts=frozenset({CALLS, CALLS_END, CALL, CALL_END, SEPARATOR}),
)
