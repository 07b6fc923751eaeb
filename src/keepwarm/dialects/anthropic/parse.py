"""A Messages body into a `Turn`."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from keepwarm.chat.messages import Chat, Message, Part
from keepwarm.dialects.anthropic.blocks import BlockIn, PartReader
from keepwarm.dialects.anthropic.options import (
    read_output_schema,
    read_reasoning,
    read_session,
    read_unserved_edits,
)
from keepwarm.dialects.anthropic.system import SystemField, read_system, system_message, system_texts
from keepwarm.dialects.anthropic.tools import ToolsOfBody, read_tool_choice
from keepwarm.dialects.body import JsonBody, one_of, shown
from keepwarm.dialects.dialect import DEFAULT_OPTIONS, DialectOptions
from keepwarm.dialects.errors import BadField
from keepwarm.dialects.sampling import read_sampling
from keepwarm.dialects.turn import Turn

_IGNORED = frozenset({"cache_control", "service_tier", "betas"})
_ROLES = ("user", "assistant", "system")


class MessageIn(msgspec.Struct):
    role: str
    content: str | list[BlockIn]


_MESSAGES = msgspec.json.Decoder(list[MessageIn])


def parse_turn(body: bytes, options: DialectOptions = DEFAULT_OPTIONS) -> Turn:
    """Raises `BadRequest`. `max_tokens` over the room left is not refused: the backend clamps."""
    fields = JsonBody(body)
    model = fields.model()
    read = _read(fields, options)
    max_tokens = fields.integer("max_tokens", low=1)
    if max_tokens is None:
        raise BadField("max_tokens", "required")
    tool_choice = read_tool_choice(fields, read.tools)
    output_schema = read_output_schema(fields)
    unserved = [*read.tools.unserved, *read.blocks.unserved, *read_unserved_edits(fields)]
    return Turn(
        model=model,
        chat=read.chat,
        sampling=read_sampling(fields, max_temperature=1),
        max_output_tokens=max_tokens,
        stop=fields.stop("stop_sequences"),
        stream=fields.flag("stream"),
        tool_choice=tool_choice,
        output_schema=output_schema,
        reasoning=read_reasoning(fields),
        session=read_session(fields),
        is_subagent=read.system.is_subagent,
        unserved=(*unserved, *fields.unknown(_IGNORED)),
        normalised=("attribution",) * read.system.num_attributions,
        num_lead_messages=int(read.system.message is not None),
        deferred_tools=read.tools.deferred,
        unknown_references=frozenset(read.tools.unknown),
    )


def parse_count(body: bytes, options: DialectOptions = DEFAULT_OPTIONS) -> tuple[str, Chat]:
    """Model and conversation of a count_tokens body. Raises `BadRequest`."""
    fields = JsonBody(body)
    return fields.model(), _read(fields, options).chat


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """A conversation, and what was met in reading it."""

    chat: Chat
    system: SystemField
    tools: ToolsOfBody
    blocks: PartReader


def _read(fields: JsonBody, options: DialectOptions) -> _Read:
    messages_in = fields.required("messages", _MESSAGES)
    if not messages_in:
        raise BadField("messages", "must hold at least one message, got []")
    tools = ToolsOfBody(fields)
    blocks = PartReader(tools)
    messages = [_message(blocks, f"messages.{i}", message) for i, message in enumerate(messages_in)]
    _refuse_saying_nothing(messages_in, messages)
    system = read_system(fields, options)
    if system.message is not None:
        messages.insert(0, system.message)
    chat = Chat(messages=tuple(messages), tools=tools.offered, found_tools=tools.found)
    return _Read(chat=chat, system=system, tools=tools, blocks=blocks)


def _message(blocks: PartReader, field: str, message: MessageIn) -> Message:
    content = f"{field}.content"
    match message.role:
        case "user":
            return Message(role="user", parts=blocks.parts(content, message.content))
        case "assistant":
            return Message(role="assistant", parts=_assistant_parts(blocks, content, message))
        case "system":
            return system_message(system_texts(content, message.content))
        case other:
            raise one_of(f"{field}.role", other, _ROLES)


def _assistant_parts(blocks: PartReader, field: str, message: MessageIn) -> tuple[Part, ...]:
    for index, block in enumerate(message.content):
        if isinstance(block, BlockIn) and block.type == "tool_result":
            raise BadField(f"{field}.{index}.type", "tool_result stands in messages of role user only")
    return blocks.parts(field, message.content)


def _refuse_saying_nothing(messages_in: list[MessageIn], messages: list[Message]) -> None:
    """The newest message must ask something. An older one is let be: its session would be lost."""
    if messages[-1].role != "user" or messages[-1].parts:
        return
    content = messages_in[-1].content
    got = "blocks without text" if content and not isinstance(content, str) else shown(content)
    raise BadField(f"messages.{len(messages) - 1}.content", f"must not be empty, got {got}")
