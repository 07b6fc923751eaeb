"""Messages of Chat Completions, into those of a `Chat`.

A `tool` message becomes a tool result in a message of role "user"; results in a row share one, so
that a conversation is the same whichever dialect it came in.
"""

from __future__ import annotations

from typing import Any

import msgspec

from keepwarm.chat.messages import Message, Part, Reasoning, ToolResult, ToolUse
from keepwarm.dialects.arguments import parse_arguments
from keepwarm.dialects.body import one_of
from keepwarm.dialects.custom_tools import custom_arguments
from keepwarm.dialects.errors import BadField
from keepwarm.dialects.openai_content import ContentReader, PartIn

_ROLES = ("system", "developer", "user", "assistant", "tool")


class FunctionCallIn(msgspec.Struct):
    name: str
    arguments: Any = None


class CustomCallIn(msgspec.Struct):
    name: str
    input: str = ""


class ToolCallIn(msgspec.Struct):
    id: str | None = None
    function: FunctionCallIn | None = None
    custom: CustomCallIn | None = None


class MessageIn(msgspec.Struct):
    role: str
    content: str | list[PartIn] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCallIn] | None = None
    function_call: FunctionCallIn | None = None
    tool_call_id: str | None = None
    name: str | None = None


class MessageReader:
    """Reads one body's messages."""

    def __init__(self) -> None:
        self._content = ContentReader()

    @property
    def unserved(self) -> list[str]:
        """Content that cannot be read, by name."""
        return self._content.unserved

    def messages(self, messages_in: list[MessageIn]) -> tuple[Message, ...]:
        """Raises `BadField`."""
        messages: list[Message] = []
        for index, message_in in enumerate(messages_in):
            message = self._message(f"messages.{index}", message_in)
            if messages and only_results(messages[-1]) and message_in.role in ("tool", "function"):
                message = Message(role="user", parts=messages.pop().parts + message.parts)
            messages.append(message)
        return tuple(messages)

    def _message(self, field: str, message: MessageIn) -> Message:
        content = f"{field}.content"
        match message.role:
            case "system" | "developer":
                return Message(role="system", parts=self._content.parts(content, message.content))
            case "user":
                if message.content is None:
                    raise BadField(content, "required")
                return Message(role="user", parts=self._content.parts(content, message.content))
            case "assistant":
                return Message(role="assistant", parts=self._assistant_parts(field, message))
            case "tool" | "function":
                return Message(role="user", parts=(self._tool_result(field, message),))
            case other:
                raise one_of(f"{field}.role", other, _ROLES)

    def _assistant_parts(self, field: str, message: MessageIn) -> tuple[Part, ...]:
        parts: list[Part] = []
        reasoning = message.reasoning_content or message.reasoning
        if reasoning:
            parts.append(Reasoning(text=reasoning))
        parts.extend(self._content.parts(f"{field}.content", message.content))
        for index, call in enumerate(message.tool_calls or ()):
            parts.append(_tool_use(f"{field}.tool_calls.{index}", call.id or f"call_{index}", call))
        if message.function_call is not None:
            call = ToolCallIn(function=message.function_call)
            parts.append(_tool_use(f"{field}.function_call", message.function_call.name, call))
        return tuple(parts)

    def _tool_result(self, field: str, message: MessageIn) -> ToolResult:
        call_id = message.tool_call_id or (message.name if message.role == "function" else None)
        if call_id is None:
            raise BadField(f"{field}.tool_call_id", "required")
        return ToolResult(tool_use_id=call_id, parts=self._content.parts(f"{field}.content", message.content))


def only_results(message: Message) -> bool:
    """Nothing but what calls returned."""
    return message.role == "user" and all(isinstance(part, ToolResult) for part in message.parts)


def _tool_use(field: str, call_id: str, call: ToolCallIn) -> ToolUse:
    if call.custom is not None:
        return ToolUse(id=call_id, name=call.custom.name, arguments=custom_arguments(call.custom.input))
    if call.function is None:
        raise BadField(f"{field}.function", "required")
    return ToolUse(id=call_id, name=call.function.name, arguments=parse_arguments(call.function.arguments))
