"""DSML of DeepSeek V3.2 (`function_calls`) and V4 (`tool_calls`).

    <｜DSML｜function_calls>
    <｜DSML｜invoke name="read">
    <｜DSML｜parameter name="path" string="true">a.txt</｜DSML｜parameter>
    </｜DSML｜invoke>
    </｜DSML｜function_calls>

The models are known to leave the block out, to close nothing, and to name the block as the other
version does; all of that is read. Nothing of this markup reaches the client as text, unless no
call can be made of it.

Source: the encoding code beside those checkpoints; sglang#40236, vllm#53227.
"""

from __future__ import annotations

import re

from keepwarm.chat.messages import ToolSpec
from keepwarm.chat.parsing.hermes import read_stray
from keepwarm.chat.parsing.marks import Marks
from keepwarm.chat.parsing.markup import MarkupFormat, Reading
from keepwarm.chat.parsing.named_call import MAX_NAME_CHARACTERS, is_name
from keepwarm.chat.parsing.parameters import ONLY_STRING, ParameterWriter, read_parameter
from keepwarm.chat.parsing.schema_types import types_of_parameter
from keepwarm.chat.parsing.source import Source, Steps

TOKEN = "｜DSML｜"
BLOCKS = tuple(f"<{TOKEN}{name}>" for name in ("function_calls", "tool_calls"))
BLOCK_ENDS = tuple(f"</{TOKEN}{name}>" for name in ("function_calls", "tool_calls"))
INVOKE, INVOKE_END = f"<{TOKEN}invoke", f"</{TOKEN}invoke>"
PARAMETER, PARAMETER_END = f"<{TOKEN}parameter", f"</{TOKEN}parameter>"

_HEAD_END = Marks([">"])
_MAX_HEAD_CHARACTERS = 2 * MAX_NAME_CHARACTERS
_ATTRIBUTE = re.compile(r"""\s*(\w+)\s*=\s*(?:"([^"]*)"|'([^']*)')""")
_INVOKE, _BLOCK_END = Marks([INVOKE]), Marks(BLOCK_ENDS)
_MEMBERS = Marks([PARAMETER, INVOKE_END])
_VALUE_ENDS = Marks([PARAMETER_END, PARAMETER + " ", INVOKE_END, *BLOCK_ENDS])
_PARAMETER_END = Marks([PARAMETER_END])
_NEXT = Marks([INVOKE, INVOKE_END, *BLOCK_ENDS])
_INVOKE_END = Marks([INVOKE_END])


def read_block(reading: Reading) -> Steps[bool]:
    """What follows the mark that opens a block."""
    return (yield from _read_calls(reading, has_called=False))


def read_call(reading: Reading) -> Steps[bool]:
    """What follows the mark of one call, where that of the block was left out."""
    if not (yield from _read_call(reading)):
        return False
    return (yield from _read_calls(reading, has_called=True))


def _read_calls(reading: Reading, has_called: bool) -> Steps[bool]:
    """All that follow, and the end of the block."""
    source = reading.source
    while True:
        if has_called:
            source.mark()
        yield from source.skip()
        if not (yield from source.accept(_INVOKE)):
            break
        if not (yield from _read_call(reading)):
            return False
        has_called = True
    yield from source.accept(_BLOCK_END)
    return has_called


def _read_call(reading: Reading) -> Steps[bool]:
    """After `<｜DSML｜invoke`. The call goes out when a parameter or its end follows."""
    source, sink = reading.source, reading.sink
    head = yield from _read_head(source)
    name = head.get("name", "").strip()
    if not is_name(name):
        return False
    member = INVOKE_END
    if "/" not in head:
        yield from source.skip()
        member = yield from source.accept(_MEMBERS)
    if not member:
        return False
    sink.start_call(name)
    writer = ParameterWriter(reading.tools.get(name), sink.arguments)
    while member == PARAMETER:
        member = yield from _read_member(source, writer, reading.tools.get(name))
    writer.close()
    sink.end_call()
    if member != INVOKE_END:
        sink.malformed()
        yield from source.pass_until(_NEXT, sink.text)
        yield from source.accept(_INVOKE_END)
    return True


def _read_member(source: Source, writer: ParameterWriter, tool: ToolSpec | None) -> Steps[str]:
    """After `<｜DSML｜parameter`. Tells the mark that follows; "" where it is none of those that may."""
    head = yield from _read_head(source)
    name = head.get("name", "").strip()
    if not name:
        return ""
    writer.begin(name, _types(tool, name, head.get("string")))
    yield from read_parameter(source, writer, _VALUE_ENDS)
    yield from source.accept(_PARAMETER_END)
    yield from source.skip()
    return (yield from source.accept(_MEMBERS))


def _types(tool: ToolSpec | None, name: str, is_string: str | None) -> frozenset[str] | None:
    """The markup says whether it is a string; a schema that allows none knows better."""
    known = types_of_parameter(tool, name)
    if is_string == "true" and (not known or "string" in known):
        return ONLY_STRING
    return known


def _read_head(source: Source) -> Steps[dict[str, str]]:
    """The attributes up to ">", "/" among them where the tag closes itself; none where it is no tag."""
    text, mark = yield from source.read_until(_HEAD_END, limit=_MAX_HEAD_CHARACTERS)
    if not mark:
        return {}
    source.take(len(mark))
    attributes = {found[1]: found[2] or found[3] or "" for found in _ATTRIBUTE.finditer(text)}
    return {**attributes, "/": ""} if text.endswith("/") else attributes


DSML = MarkupFormat(
    name="dsml",
    blocks={
        **dict.fromkeys(BLOCKS, read_block),
        INVOKE: read_call,
        **dict.fromkeys((*BLOCK_ENDS, INVOKE_END), read_stray),
    },
    signs=(TOKEN,),
    control_texts=frozenset({TOKEN}),
)
