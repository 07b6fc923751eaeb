"""Hermes and Qwen: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`.

Also what the preamble asks for that goes to models whose template knows no tools.

Source: NousResearch's Hermes function calling; the chat templates of Qwen 2.5 and 3.
"""

from __future__ import annotations

from keepwarm.chat.parsing.json_calls import read_json_calls
from keepwarm.chat.parsing.marks import Marks
from keepwarm.chat.parsing.markup import MarkupFormat, Reading
from keepwarm.chat.parsing.source import Steps

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_CLOSE = Marks([CLOSE])
_NEXT = Marks([OPEN, CLOSE])


def read_hermes_block(reading: Reading) -> Steps[bool]:
    """What follows `<tool_call>`; the closing tag may be missing."""
    outcome = yield from read_json_calls(reading)
    if outcome == "broken_call":
        yield from reading.source.pass_until(_NEXT, reading.sink.text)
    if outcome != "no_call":
        yield from reading.source.accept(_CLOSE)
    return outcome != "no_call"


def read_stray(_reading: Reading) -> Steps[bool]:
    """A closing mark that closes nothing."""
    yield from ()
    return False


HERMES = MarkupFormat(
    name="hermes",
    blocks={OPEN: read_hermes_block, CLOSE: read_stray},
    signs=(OPEN,),
    other_signs=("<function=", "<arg_key>"),  # Qwen3-Coder's, GLM's
    control_texts=frozenset({OPEN, CLOSE}),
)
