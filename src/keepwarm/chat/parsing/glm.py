"""GLM 4.5 and later: a name, then keys and values in tags.

    <tool_call>name
    <arg_key>key</arg_key>
    <arg_value>value</arg_value>
    </tool_call>

4.7 leaves the line breaks out. Values of the type string are as they are, others are JSON. Tags
that these models are known to forget may be missing: `<arg_value>`, and the first `<arg_key>`.

Source: the chat templates of GLM 4.5, 4.6 and 4.7; vllm#49248, vllm#47190, vllm#54971.
"""

from __future__ import annotations

from collections.abc import Iterable

from keepwarm.chat.parsing.hermes import CLOSE, OPEN, read_stray
from keepwarm.chat.parsing.marks import Marks
from keepwarm.chat.parsing.markup import MarkupFormat, Reading
from keepwarm.chat.parsing.named_call import MAX_NAME_CHARACTERS, is_name
from keepwarm.chat.parsing.parameters import ParameterWriter, read_parameter
from keepwarm.chat.parsing.source import Source, Steps

KEY, KEY_END = "<arg_key>", "</arg_key>"
VALUE, VALUE_END = "<arg_value>", "</arg_value>"

_AFTER_NAME = Marks(["\n", KEY, KEY_END, CLOSE])
_AFTER_KEY = Marks([KEY_END, VALUE, CLOSE])
_KEY, _KEY_END, _VALUE = Marks([KEY]), Marks([KEY_END]), Marks([VALUE])
_VALUE_END, _CLOSE = Marks([VALUE_END]), Marks([CLOSE])
_MEMBERS = Marks([KEY, CLOSE])
_BLOCKS = Marks([OPEN, CLOSE])


def read_call(reading: Reading) -> Steps[bool]:
    """What follows `<tool_call>`. The call goes out when its name is followed by a key or the end."""
    source, sink = reading.source, reading.sink
    yield from source.skip()
    name, mark = yield from source.read_until(_AFTER_NAME, limit=MAX_NAME_CHARACTERS)
    name, key = _split_name(name.strip(), mark, reading.tools)
    if not is_name(name):
        return False
    yield from source.skip()
    member = KEY if key else (yield from source.accept(_MEMBERS))
    if not member:
        return False
    sink.start_call(name)
    writer = ParameterWriter(reading.tools.get(name), sink.arguments)
    while member == KEY:
        member = yield from _read_member(source, writer, key)
        key = ""
    writer.close()
    sink.end_call()
    if member != CLOSE:
        sink.malformed()
        yield from source.pass_until(_BLOCKS, sink.text)
        yield from source.accept(_CLOSE)
    return True


def _split_name(name: str, mark: str, tools: Iterable[str]) -> tuple[str, str]:
    """The name, and the first key where nothing was put between the two."""
    if mark != KEY_END:
        return name, ""
    known = max((tool for tool in tools if name.startswith(tool)), key=len, default="")
    return known, name.removeprefix(known).strip()


def _read_member(source: Source, writer: ParameterWriter, key: str) -> Steps[str]:
    """A key, unless it is known, and its value. Tells the mark that follows; "" where it is none of
    those that may."""
    mark = KEY_END
    if not key:
        key, mark = yield from source.read_until(_AFTER_KEY, limit=MAX_NAME_CHARACTERS)
    if mark not in (KEY_END, VALUE) or not key.strip():
        return ""
    while (yield from source.accept(_KEY_END)):  # some are written twice
        yield from source.skip()
    yield from source.accept(_VALUE)
    writer.begin(key.strip())
    yield from read_parameter(source, writer, _VALUE_END)
    yield from source.accept(_VALUE_END)
    yield from source.skip()
    return (yield from source.accept(_MEMBERS))


GLM = MarkupFormat(
    name="glm",
    blocks={OPEN: read_call, CLOSE: read_stray},
    signs=(OPEN, KEY, VALUE),
    control_texts=frozenset({OPEN, CLOSE, KEY, KEY_END, VALUE, VALUE_END}),
)
