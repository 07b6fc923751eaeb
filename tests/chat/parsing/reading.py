"""An answer parsed in pieces, and what must hold of every answer however it was cut."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from keepwarm.chat.events import (
    Delta,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from keepwarm.chat.messages import ToolSpec
from keepwarm.chat.parsing.parser import ParsingContext, ToolFormat

READ = ToolSpec(
    name="Read",
    description="Reads a file.",
    parameters={
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "limit": {"type": "integer"},
            "ratio": {"type": "number"},
            "deep": {"type": "boolean"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "more": {"type": "object"},
        },
    },
)
BASH = ToolSpec(
    name="Bash",
    description="Runs a command.",
    parameters={"type": "object", "properties": {"command": {"type": "string"}}},
)
TOOLS = (READ, BASH)


@dataclass(frozen=True)
class Call:
    """One call, its arguments decoded."""

    name: str
    arguments: dict[str, Any]


Part = str | Call


@dataclass(frozen=True)
class Read:
    """What an answer says: texts and calls in order, thoughts apart."""

    parts: tuple[Part, ...]
    num_malformed: int = 0
    reasoning: str = ""


def read_pieces(
    markup: ToolFormat,
    pieces: Iterable[str],
    *,
    tools: Sequence[ToolSpec] = TOOLS,
    begins_in_reasoning: bool = False,
) -> Read:
    """Parses the pieces; the deltas must be in order and all arguments valid JSON objects."""
    numbers = iter(range(1_000_000))
    context = ParsingContext(
        tools=tools,
        new_call_id=lambda: f"call_{next(numbers)}",
        begins_in_reasoning=begins_in_reasoning,
    )
    parser = markup.parser(context)
    deltas = [delta for piece in pieces for delta in parser.feed(piece)]
    deltas += parser.finish()
    parts, reasoning = parts_of(deltas)
    return Read(parts=parts, num_malformed=parser.num_malformed, reasoning=reasoning)


def read_every_split(markup: ToolFormat, text: str, *, tools: Sequence[ToolSpec] = TOOLS) -> Read:
    """The same in one piece, in every two pieces, and character by character."""
    whole = read_pieces(markup, [text], tools=tools)
    assert read_pieces(markup, text, tools=tools) == whole
    for cut in range(1, len(text)):
        assert read_pieces(markup, [text[:cut], text[cut:]], tools=tools) == whole, text[:cut]
    return whole


def text_of(read: Read) -> str:
    return "".join(part for part in read.parts if isinstance(part, str))


def calls_of(read: Read) -> list[Call]:
    return [part for part in read.parts if isinstance(part, Call)]


def parts_of(deltas: Iterable[Delta]) -> tuple[tuple[Part, ...], str]:
    parts: list[Part] = []
    reasoning, name, arguments = "", "", ""
    call_ids: list[str] = []
    is_open = False
    for delta in deltas:
        match delta:
            case TextDelta():
                assert delta.text, "an empty delta"
                assert not is_open, "text inside a call"
                if parts and isinstance(parts[-1], str):
                    parts[-1] += delta.text
                else:
                    parts.append(delta.text)
            case ReasoningDelta():
                assert delta.text, "an empty delta"
                assert not is_open, "reasoning inside a call"
                reasoning += delta.text
            case ToolCallStart():
                assert not is_open, "a call inside a call"
                is_open, name, arguments = True, delta.name, ""
                call_ids.append(delta.id)
            case ToolCallArguments():
                assert is_open, "arguments outside a call"
                arguments += delta.json
            case ToolCallEnd():
                assert is_open, "an end without a beginning"
                value = json.loads(arguments)
                assert isinstance(value, dict)
                parts.append(Call(name, value))
                is_open = False
    assert not is_open, "a call that never ended"
    assert len(set(call_ids)) == len(call_ids)
    return tuple(parts), reasoning
