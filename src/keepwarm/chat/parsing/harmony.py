"""Harmony of gpt-oss: an answer is several messages, each with a channel and maybe a recipient.

    <|channel|>analysis<|message|>thought<|end|>
    <|start|>assistant<|channel|>commentary to=functions.read <|constrain|>json<|message|>{…}<|call|>
    <|start|>assistant<|channel|>final<|message|>text<|return|>

The prompt has written `<|start|>assistant` already. A recipient may stand before the channel or
after it, and makes a call of any message but a final one. Messages of one kind are put a blank line
apart.

Source: "OpenAI harmony response format" in OpenAI's cookbook; vllm#31677, vllm-mlx#562.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from keepwarm.chat.parsing.marks import Marks
from keepwarm.chat.parsing.markup import MarkupFormat, ReadBlock, Reading
from keepwarm.chat.parsing.named_call import is_name, read_named_call
from keepwarm.chat.parsing.source import Steps

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"

_MAX_HEADER_CHARACTERS = 512
_HEADER_ENDS = Marks([MESSAGE, END, CALL, RETURN])
_CHANNEL_OF_HEADER = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")
_RECIPIENT_OF_HEADER = re.compile(r"\bto=([^\s<]+)")
_BODY_ENDS = Marks([END, CALL, RETURN, START, CHANNEL])
_CLOSERS = Marks([END, CALL, RETURN])
_OPENERS = Marks([START, CHANNEL])
_FUNCTIONS = "functions."
_PEOPLE = ("assistant", "user", "all")


@dataclass(slots=True, kw_only=True)
class _Said:
    """What the messages before have brought."""

    text: bool = False
    reasoning: bool = False


def _reader_after(opener: str) -> ReadBlock:
    """Reads the message that this mark opens, and those after it."""

    def read_messages(reading: Reading) -> Steps[bool]:
        source, said, mark = reading.source, _Said(), opener
        while mark:
            header, end = yield from source.read_until(_HEADER_ENDS, limit=_MAX_HEADER_CHARACTERS)
            if end != MESSAGE:
                return False
            source.take(len(end))
            yield from _read_body(reading, mark + header, said)
            yield from source.accept(_CLOSERS)
            source.mark()
            yield from source.skip()
            mark = yield from source.accept(_OPENERS)
        return True

    return read_messages


def _read_body(reading: Reading, header: str, said: _Said) -> Steps[None]:
    source, sink = reading.source, reading.sink
    channel_found = _CHANNEL_OF_HEADER.search(header)
    channel = channel_found[1] if channel_found else "final"
    name = _called(header)
    if name and channel != "final":
        yield from source.skip()
        outcome = yield from read_named_call(reading, name)
        if outcome == "call":
            yield from source.skip()
        elif outcome == "no_call":
            sink.malformed()
    if channel == "analysis":
        write = _after_a_blank_line(sink.reasoning) if said.reasoning else sink.reasoning
        said.reasoning = True
    else:
        write = _after_a_blank_line(sink.text) if said.text else sink.text
        said.text = True
    yield from source.pass_until(_BODY_ENDS, write)


def _after_a_blank_line(write: Callable[[str], object]) -> Callable[[str], object]:
    """Writes it before the first text, if any comes."""
    space = ["\n\n"]

    def write_spaced(text: str) -> None:
        write("".join(space) + text)
        space.clear()

    return write_spaced


def _called(header: str) -> str:
    """The tool that the message is for; "" where it is for people."""
    found = _RECIPIENT_OF_HEADER.search(header)
    name = found[1].removeprefix(_FUNCTIONS) if found else ""
    return name if is_name(name) and name not in _PEOPLE else ""


HARMONY = MarkupFormat(
    name="harmony",
    blocks={START: _reader_after(START), CHANNEL: _reader_after(CHANNEL)},
    bare_blocks={"to=": _reader_after("to=")},
    frames_text=True,
    signs=(START, CHANNEL, MESSAGE),
    control_texts=frozenset({START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN}),
)
