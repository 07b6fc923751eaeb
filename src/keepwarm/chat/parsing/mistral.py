"""Mistral: `[TOOL_CALLS]` before an array of calls, or before each call's name.

    until v7  [TOOL_CALLS] [{"name": …, "arguments": {…}, "id": …}, …]
    v11       [TOOL_CALLS]name[CALL_ID]id[ARGS]{…}
    v13       [TOOL_CALLS]name[ARGS]{…}

Thoughts stand between `[THINK]` and `[/THINK]`. The ids that a model writes are not kept: a call
gets one of ours.

Source: the chat templates of those models; mistral-common's tokenizer versions.
"""

from __future__ import annotations

from keepwarm.chat.parsing.json_calls import read_json_calls
from keepwarm.chat.parsing.marks import Marks
from keepwarm.chat.parsing.markup import MarkupFormat, Reading
from keepwarm.chat.parsing.named_call import MAX_NAME_CHARACTERS, is_name, read_named_call
from keepwarm.chat.parsing.source import Steps
from keepwarm.chat.parsing.thoughts import reader_of_thoughts

CALLS, CALL_ID, ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
THINK, THINK_END = "[THINK]", "[/THINK]"

_CALLS = Marks([CALLS])
_AFTER_NAME = Marks([CALL_ID, ARGUMENTS, "{", CALLS])
_AFTER_ID = Marks([ARGUMENTS, "{", CALLS])
_ARGUMENTS = Marks([ARGUMENTS])


def read_calls(reading: Reading) -> Steps[bool]:
    """What follows `[TOOL_CALLS]`."""
    source = reading.source
    if (yield from source.skip()) in ("[", "{"):
        outcome = yield from read_json_calls(reading)
    else:
        name, mark = yield from source.read_until(_AFTER_NAME, limit=MAX_NAME_CHARACTERS)
        if mark == CALL_ID:
            _, mark = yield from source.read_until(_AFTER_ID, limit=MAX_NAME_CHARACTERS)
        if mark in ("", CALLS) or not is_name(name.strip()):
            return False
        yield from source.accept(_ARGUMENTS)
        yield from source.skip()
        outcome = yield from read_named_call(reading, name.strip())
    if outcome == "broken_call":
        yield from source.pass_until(_CALLS, reading.sink.text)
    return outcome != "no_call"


MISTRAL = MarkupFormat(
    name="mistral",
    blocks={CALLS: read_calls, THINK: reader_of_thoughts(THINK_END, CALLS)},
    signs=(CALLS,),
    control_texts=frozenset({CALLS, CALL_ID, ARGUMENTS, THINK, THINK_END}),
)
