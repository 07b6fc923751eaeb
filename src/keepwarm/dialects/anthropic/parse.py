"""A Messages body into a `Turn`."""

from __future__ import annotations

import msgspec

from keepwarm.chat.messages import Chat, Message, Part
from keepwarm.core.sampling import Sampling
from keepwarm.dialects.anthropic.blocks import BlockIn, PartReader, ToolIn
from keepwarm.dialects.body import JsonBody, one_of, shown
from keepwarm.dialects.errors import BadField
from keepwarm.dialects.turn import Turn

_IGNORED = frozenset(
    {
        "metadata",  # an id of the user: never in a prompt
        "thinking",
        "context_management",
        "output_config",
        "cache_control",
        "tool_choice",
        "service_tier",
        "betas",
    }
)
_ROLES = ("user", "assistant", "system")


class MessageIn(msgspec.Struct):
    role: str
    content: str | list[BlockIn]


_MESSAGES = msgspec.json.Decoder(list[MessageIn])
_SYSTEM: msgspec.json.Decoder[str | list[BlockIn]] = msgspec.json.Decoder(str | list[BlockIn])
_TOOLS = msgspec.json.Decoder(list[ToolIn])
_STRINGS = msgspec.json.Decoder(list[str])


def parse_turn(body: bytes) -> Turn:
    """Raises `BadRequest`. `max_tokens` over the room left is not refused: the backend clamps."""
    fields = JsonBody(body)
    model = _model(fields)
    chat, unserved = _chat(fields)
    max_tokens = fields.integer("max_tokens", low=1)
    if max_tokens is None:
        raise BadField("max_tokens", "required")
    return Turn(
        model=model,
        chat=chat,
        sampling=_sampling(fields),
        max_output_tokens=max_tokens,
        stop=_stop(fields),
        stream=fields.flag("stream"),
        unserved=tuple(unserved + fields.unknown(_IGNORED)),
    )


def parse_count(body: bytes) -> tuple[str, Chat]:
    """Model and conversation of a count_tokens body. Raises `BadRequest`."""
    fields = JsonBody(body)
    model = _model(fields)
    chat, _ = _chat(fields)
    return model, chat


def _model(fields: JsonBody) -> str:
    model = fields.text("model")
    if not model:
        raise BadField("model", "required")
    return model


def _chat(fields: JsonBody) -> tuple[Chat, list[str]]:
    messages_in = fields.required("messages", _MESSAGES)
    if not messages_in:
        raise BadField("messages", "must hold at least one message, got []")
    tools_in = fields.optional("tools", _TOOLS) or []
    reader = PartReader(tools_in)
    tools = reader.offered(tools_in)
    messages = [_message(reader, f"messages.{i}", message) for i, message in enumerate(messages_in)]
    system = fields.optional("system", _SYSTEM)
    if system:
        parts = _system_parts(reader, "system", system)
        messages = [Message(role="system", parts=parts), *messages] if parts else messages
    return Chat(messages=tuple(messages), tools=tools), reader.unserved


def _message(reader: PartReader, field: str, message: MessageIn) -> Message:
    match message.role:
        case "user":
            parts = reader.parts(f"{field}.content", message.content)
            if not parts:
                raise BadField(f"{field}.content", f"must not be empty, got {_shown(message.content)}")
            return Message(role="user", parts=parts)
        case "assistant":
            return Message(role="assistant", parts=_assistant_parts(reader, field, message))
        case "system":
            return Message(role="system", parts=_system_parts(reader, f"{field}.content", message.content))
        case other:
            raise one_of(f"{field}.role", other, _ROLES)


def _assistant_parts(reader: PartReader, field: str, message: MessageIn) -> tuple[Part, ...]:
    parts = reader.parts(f"{field}.content", message.content)
    for index, block in enumerate(message.content):
        if isinstance(block, BlockIn) and block.type == "tool_result":
            raise BadField(
                f"{field}.content.{index}.type", "tool_result stands in messages of role user only"
            )
    return parts


def _system_parts(reader: PartReader, field: str, content: str | list[BlockIn]) -> tuple[Part, ...]:
    if not isinstance(content, str):
        for index, block in enumerate(content):
            if block.type != "text":
                raise one_of(f"{field}.{index}.type", block.type, ("text",))
    return reader.parts(field, content)


def _shown(content: str | list[BlockIn]) -> str:
    return shown(content) if isinstance(content, str) or not content else "blocks without text"


def _sampling(fields: JsonBody) -> Sampling:
    temperature = fields.number("temperature", low=0, high=1)
    top_p = fields.number("top_p", low=0, high=1)
    top_k = fields.integer("top_k", low=0) or 0
    if top_p == 0:  # the most likely token alone
        top_p, top_k = 1.0, 1
    return Sampling(
        temperature=1.0 if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
        top_k=top_k,
    )


def _stop(fields: JsonBody) -> tuple[str, ...]:
    stop = fields.optional("stop_sequences", _STRINGS) or []
    for index, sequence in enumerate(stop):
        if not sequence:
            raise BadField(f"stop_sequences.{index}", 'must not be empty, got ""')
    return tuple(stop)
