"""Input items of a Responses body, into the messages of a `Chat`.

Neighbouring items of one speaker are one message, so that a conversation is the same whichever
dialect it came in: reasoning, words and calls are the assistant's; what calls returned is one
message of role "user".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from keepwarm.chat.messages import Image, Message, Reasoning, Role, Text, ToolResult, ToolUse
from keepwarm.dialects.arguments import parse_arguments
from keepwarm.dialects.body import one_of, shown
from keepwarm.dialects.custom_tools import custom_arguments
from keepwarm.dialects.errors import BadField
from keepwarm.dialects.openai_chat.messages import only_results
from keepwarm.dialects.openai_content import ContentReader, PartIn, needed
from keepwarm.dialects.openai_options import NamedIn
from keepwarm.dialects.openai_responses.replayable import unsealed
from keepwarm.dialects.openai_responses.tools import SEARCH, ToolIn, ToolTable, model_name

_ROLES = ("user", "assistant", "system", "developer")
_REFERENCE = "item_reference"


class WordsIn(msgspec.Struct):
    """A piece of a summary or of a thought."""

    text: str = ""


class ItemIn(msgspec.Struct):
    """Any item; which fields matter follows from `type`."""

    type: str | None = None
    id: str | None = None
    role: str | None = None
    content: str | list[PartIn] | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: Any = None
    input: Any = None
    output: Any = None
    summary: list[WordsIn] | None = None
    encrypted_content: str | None = None
    tools: Any = None

    @property
    def kind(self) -> str:
        """A message may leave its type out, and so may a reference."""
        return self.type or ("message" if self.role else _REFERENCE)


class ItemReader:
    """Reads one body's items; tells the table of the tools that they bring."""

    def __init__(self, tools: ToolTable) -> None:
        self._tools = tools
        self._content = ContentReader()

    @property
    def unserved(self) -> list[str]:
        """Items and content that nothing here acts on, by name."""
        return self._content.unserved

    def messages(self, items: list[ItemIn]) -> tuple[Message, ...]:
        """Raises `BadField`."""
        messages: list[Message] = []
        for index, item in enumerate(items):
            for message in self._messages(f"input.{index}", item):
                if messages and _is_continued(messages[-1], message):
                    message = Message(role=message.role, parts=messages.pop().parts + message.parts)
                messages.append(message)
        return tuple(messages)

    def _messages(self, field: str, item: ItemIn) -> Iterator[Message]:
        match item.kind:
            case "message":
                yield Message(role=_role(field, item), parts=self._words(field, item))
            case "reasoning":
                yield from self._reasoning(item)
            case "function_call" | "custom_tool_call" | "tool_search_call":
                yield Message(role="assistant", parts=(_tool_use(field, item),))
            case "function_call_output" | "custom_tool_call_output":
                yield _result(item, self._output(f"{field}.output", item.output))
            case "tool_search_output":
                yield _result(item, self._told(field, item))
            case "additional_tools":
                yield Message(role="system", parts=self._told(field, item))
            case "item_reference":
                raise BadField(field, f"items are not kept here: send the item, not {shown(item.id)}")
            case other:
                self.unserved.append(f"item:{other}")

    def _words(self, field: str, item: ItemIn) -> tuple[Text | Image, ...]:
        if item.content is None:
            raise BadField(f"{field}.content", "required")
        return self._content.parts(f"{field}.content", item.content)

    def _reasoning(self, item: ItemIn) -> Iterator[Message]:
        """The thoughts themselves, in whichever form they came back; else their summary."""
        text = unsealed(item.encrypted_content or "")
        if text is None and item.encrypted_content:
            self.unserved.append("reasoning.encrypted_content")
        if not text and isinstance(item.content, list):
            text = "".join(part.text or "" for part in item.content)
        text = text or "\n\n".join(part.text for part in item.summary or ())
        if text:
            yield Message(role="assistant", parts=(Reasoning(text=text),))

    def _output(self, field: str, output: Any) -> tuple[Text | Image, ...]:
        if output is None or isinstance(output, str):
            return self._content.parts(field, output)
        try:
            return self._content.parts(field, msgspec.convert(output, list[PartIn]))
        except msgspec.ValidationError as error:
            raise BadField(field, f"must be a string or a list of content: {error}") from error

    def _told(self, field: str, item: ItemIn) -> tuple[Text, ...]:
        try:
            tools = msgspec.convert(item.tools or [], list[ToolIn])
        except msgspec.ValidationError as error:
            raise BadField(f"{field}.tools", f"must be a list of tools: {error}") from error
        text = self._tools.told(f"{field}.tools", tools)
        return (Text(text=text),) if text else ()


def _role(field: str, item: ItemIn) -> Role:
    match item.role:
        case "user" | "assistant":
            return item.role
        case "system" | "developer":
            return "system"
        case None:
            raise BadField(f"{field}.role", "required")
        case other:
            raise one_of(f"{field}.role", other, _ROLES)


def _result(item: ItemIn, parts: tuple[Text | Image, ...]) -> Message:
    """Outputs that answer no call are let be: they would come again with every turn."""
    call_id = item.call_id or item.id or ""
    return Message(role="user", parts=(ToolResult(tool_use_id=call_id, parts=parts),))


def _is_continued(last: Message, message: Message) -> bool:
    if last.role != message.role:
        return False
    return message.role == "assistant" or (only_results(last) and only_results(message))


def _tool_use(field: str, item: ItemIn) -> ToolUse:
    call_id = needed(item.call_id, f"{field}.call_id")
    if item.type == "tool_search_call":
        return ToolUse(id=call_id, name=SEARCH, arguments=parse_arguments(item.arguments))
    name = model_name(NamedIn(name=needed(item.name, f"{field}.name"), namespace=item.namespace))
    if item.type == "custom_tool_call":
        text = item.input if isinstance(item.input, str) else ""
        return ToolUse(id=call_id, name=name, arguments=custom_arguments(text))
    return ToolUse(id=call_id, name=name, arguments=parse_arguments(item.arguments))
