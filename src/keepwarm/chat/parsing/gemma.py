"""FunctionGemma and Gemma 4: `call:name{key:value,…}`, a notation of their own for values.

    FunctionGemma  <start_function_call>call:read{path:<escape>a.txt<escape>}<end_function_call>
    Gemma 4        <|tool_call>call:read{path:<|"|>a.txt<|"|>,deep:true}<tool_call|>

Keys are bare, strings stand between delimiters, as they are; objects and arrays nest. Gemma 4
thinks between `<|channel>thought` and `<channel|>`, and is known to leave the opening mark out
before a call that follows.

Source: the chat templates of those models; vllm#54256, ollama#15255.
"""

from __future__ import annotations

from keepwarm.chat.parsing.gemma_values import ValueReader
from keepwarm.chat.parsing.marks import Marks
from keepwarm.chat.parsing.markup import MarkupFormat, ReadBlock, Reading
from keepwarm.chat.parsing.named_call import MAX_NAME_CHARACTERS, is_name
from keepwarm.chat.parsing.source import Steps
from keepwarm.chat.parsing.thoughts import reader_of_thoughts

FUNCTION_OPEN, FUNCTION_CLOSE, ESCAPE = "<start_function_call>", "<end_function_call>", "<escape>"
CALL_OPEN, CALL_CLOSE, QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
THOUGHT, CHANNEL, CHANNEL_CLOSE = "<|channel>thought", "<|channel>", "<channel|>"

_PREFIX = "call:"
_PREFIXES = Marks([_PREFIX])
_AFTER_NAME = Marks(["{", "\n"])


def _reader_of_call(open_mark: str, close_mark: str, delimiter: str, *, is_bare: bool = False) -> ReadBlock:
    """`is_bare`: the prefix is what was taken, and only a declared tool counts."""
    closes, ends = Marks([close_mark]), Marks([open_mark, close_mark])

    def read_call(reading: Reading) -> Steps[bool]:
        source, sink = reading.source, reading.sink
        yield from source.skip()
        if not is_bare and not (yield from source.accept(_PREFIXES)):
            return False
        name, mark = yield from source.read_until(_AFTER_NAME, limit=MAX_NAME_CHARACTERS)
        name = name.strip()
        if mark != "{" or not is_name(name) or (is_bare and name not in reading.tools):
            return False
        sink.start_call(name)
        values = ValueReader(source, sink.arguments, delimiter)
        is_whole = yield from values.read_arguments(reading.tools.get(name))
        sink.end_call()
        if not is_whole:
            sink.malformed()
            sink.text(values.unread)
            yield from source.pass_until(ends, sink.text)
        yield from source.skip()
        yield from source.accept(closes)
        return True

    return read_call


FUNCTION_GEMMA = MarkupFormat(
    name="function_gemma",
    blocks={FUNCTION_OPEN: _reader_of_call(FUNCTION_OPEN, FUNCTION_CLOSE, ESCAPE)},
    signs=(FUNCTION_OPEN,),
    control_texts=frozenset({FUNCTION_OPEN, FUNCTION_CLOSE, ESCAPE}),
)
GEMMA4 = MarkupFormat(
    name="gemma4",
    blocks={
        CALL_OPEN: _reader_of_call(CALL_OPEN, CALL_CLOSE, QUOTE),
        THOUGHT + "\n": reader_of_thoughts(CHANNEL_CLOSE, CALL_OPEN),
        THOUGHT: reader_of_thoughts(CHANNEL_CLOSE, CALL_OPEN),
    },
    bare_blocks={_PREFIX: _reader_of_call(CALL_OPEN, CALL_CLOSE, QUOTE, is_bare=True)},
    frames_text=True,
    signs=(CALL_OPEN,),
    control_texts=frozenset({CALL_OPEN, CALL_CLOSE, QUOTE, CHANNEL, CHANNEL_CLOSE}),
)
