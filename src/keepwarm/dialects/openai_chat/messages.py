"""OpenAI's messages and tools, into those of a `Chat`.

A `tool` message becomes a tool result in a message of role "user"; results in a row share one, so
that a conversation is the same whichever dialect it came in.
"""

from __future__ import annotations

from typing import Any

import msgspec

from keepwarm.chat.messages import Image, Message, Part, Reasoning, Text, ToolResult, ToolSpec, ToolUse
from keepwarm.dialects.body import one_of, portable
from keepwarm.dialects.errors import BadField

_ROLES = ("system", "developer", "user", "assistant", "tool")
_PART_TYPES = ("text", "image_url", "refusal")


class ImageUrlIn(msgspec.Struct):
    url: str


class PartIn(msgspec.Struct):
    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: ImageUrlIn | str | None = None


class FunctionCallIn(msgspec.Struct):
    name: str
    arguments: Any = None


class ToolCallIn(msgspec.Struct):
    id: str | None = None
    function: FunctionCallIn | None = None


class MessageIn(msgspec.Struct):
    role: str
    content: str | list[PartIn] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCallIn] | None = None
    function_call: FunctionCallIn | None = None
    tool_call_id: str | None = None
    name: str | None = None


class FunctionIn(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ToolIn(msgspec.Struct):
    type: str = "function"
    function: FunctionIn | None = None


def read_messages(messages_in: list[MessageIn]) -> tuple[Message, ...]:
    """Raises `BadField`."""
    messages: list[Message] = []
    for index, message_in in enumerate(messages_in):
        message = _message(f"messages.{index}", message_in)
        if messages and _only_results(messages[-1]) and message_in.role in ("tool", "function"):
            message = Message(role="user", parts=messages.pop().parts + message.parts)
        messages.append(message)
    return tuple(messages)


def read_tools(tools_in: list[ToolIn]) -> tuple[tuple[ToolSpec, ...], list[str]]:
    """The tools to offer, and the names of those of a kind that cannot run here."""
    specs: list[ToolSpec] = []
    unserved: list[str] = []
    for index, tool in enumerate(tools_in):
        if tool.type != "function":
            unserved.append(f"tool:{tool.type}")
            continue
        if tool.function is None:
            raise BadField(f"tools.{index}.function", "required")
        specs.append(
            ToolSpec(
                name=tool.function.name,
                description=tool.function.description or "",
                parameters=tool.function.parameters or {},
            )
        )
    return tuple(specs), unserved


def _message(field: str, message: MessageIn) -> Message:
    content = f"{field}.content"
    match message.role:
        case "system" | "developer":
            return Message(role="system", parts=_parts(content, message.content))
        case "user":
            if message.content is None:
                raise BadField(content, "required")
            return Message(role="user", parts=_parts(content, message.content))
        case "assistant":
            return Message(role="assistant", parts=_assistant_parts(field, message))
        case "tool" | "function":
            return Message(role="user", parts=(_tool_result(field, message),))
        case other:
            raise one_of(f"{field}.role", other, _ROLES)


def _only_results(message: Message) -> bool:
    return message.role == "user" and all(isinstance(part, ToolResult) for part in message.parts)


def _assistant_parts(field: str, message: MessageIn) -> tuple[Part, ...]:
    parts: list[Part] = []
    reasoning = message.reasoning_content or message.reasoning
    if reasoning:
        parts.append(Reasoning(text=reasoning))
    parts.extend(_parts(f"{field}.content", message.content))
    for index, call in enumerate(message.tool_calls or ()):
        if call.function is None:
            raise BadField(f"{field}.tool_calls.{index}.function", "required")
        parts.append(_tool_use(call.id or f"call_{index}", call.function))
    if message.function_call is not None:
        parts.append(_tool_use(message.function_call.name, message.function_call))
    return tuple(parts)


def _tool_use(call_id: str, function: FunctionCallIn) -> ToolUse:
    return ToolUse(id=call_id, name=function.name, arguments=_arguments(function.arguments))


def _arguments(sent: Any) -> dict[str, Any] | str:
    """Arguments come as JSON text; what is no JSON object stays as it is, for the model to see."""
    if sent is None or sent == "":
        return {}
    if isinstance(sent, dict):
        return portable(sent)
    if not isinstance(sent, str):
        return msgspec.json.encode(sent).decode()
    try:
        return portable(msgspec.json.decode(sent, type=dict[str, Any]))
    except (msgspec.DecodeError, RecursionError):
        return sent


def _tool_result(field: str, message: MessageIn) -> ToolResult:
    call_id = message.tool_call_id or (message.name if message.role == "function" else None)
    if call_id is None:
        raise BadField(f"{field}.tool_call_id", "required")
    return ToolResult(tool_use_id=call_id, parts=_parts(f"{field}.content", message.content))


def _parts(field: str, content: str | list[PartIn] | None) -> tuple[Text | Image, ...]:
    """A string is one text part; empty texts carry nothing and are left out."""
    if content is None:
        return ()
    if isinstance(content, str):
        return (Text(text=content),) if content else ()
    read = (_part(f"{field}.{index}", part) for index, part in enumerate(content))
    return tuple(part for part in read if part != Text(text=""))


def _part(field: str, part: PartIn) -> Text | Image:
    match part.type:
        case "text":
            return Text(text=_needed(part.text, f"{field}.text"))
        case "refusal":
            return Text(text=_needed(part.refusal, f"{field}.refusal"))
        case "image_url":
            url = part.image_url.url if isinstance(part.image_url, ImageUrlIn) else part.image_url
            return Image(source=_needed(url, f"{field}.image_url.url"))
        case other:
            raise one_of(f"{field}.type", other, _PART_TYPES)


def _needed(value: str | None, field: str) -> str:
    if value is None:
        raise BadField(field, "required")
    return value
