"""A conversation, whatever dialect it came in: tagged parts, parsed once at the door."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class Text(msgspec.Struct, frozen=True, kw_only=True, tag="text"):
    """Words."""

    text: str


class Reasoning(msgspec.Struct, frozen=True, kw_only=True, tag="reasoning"):
    """What the model thought before it spoke. The signature is opaque and comes back as sent."""

    text: str
    signature: str = ""


class ToolUse(msgspec.Struct, frozen=True, kw_only=True, tag="tool_use"):
    """A call the model made. Arguments that were no valid JSON object stay as their text."""

    id: str
    name: str
    arguments: dict[str, Any] | str


class Image(msgspec.Struct, frozen=True, kw_only=True, tag="image"):
    """A picture, undecoded: a data URL or an address."""

    source: str


class ToolResult(msgspec.Struct, frozen=True, kw_only=True, tag="tool_result"):
    """What a call returned."""

    tool_use_id: str
    parts: tuple[Text | Image, ...]
    is_error: bool = False


Part = Text | Reasoning | ToolUse | ToolResult | Image
Role = Literal["system", "user", "assistant"]


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message. Tool results stand in messages of role "user", as Anthropic has it."""

    role: Role
    parts: tuple[Part, ...]

    def text(self) -> str:
        """All text parts, end to end."""
        return "".join(part.text for part in self.parts if isinstance(part, Text))


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A tool the model may call; `parameters` is a JSON schema."""

    name: str
    description: str
    parameters: dict[str, Any]


class Chat(msgspec.Struct, frozen=True, kw_only=True):
    """A whole conversation. System texts come first among `messages`, in order; later ones may
    stand anywhere."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    """What the prompt's head offers."""
    found_tools: tuple[ToolSpec, ...] = ()
    """What the head leaves out and a tool result describes, at the place where the model found it."""

    @property
    def callable_tools(self) -> tuple[ToolSpec, ...]:
        """Every tool that the model was told of."""
        return self.tools + self.found_tools
