"""Anthropic's content blocks and tools, into the parts and tools of a `Chat`."""

from __future__ import annotations

from typing import Any

import msgspec

from keepwarm.chat.messages import Image, Part, Reasoning, Text, ToolResult, ToolSpec, ToolUse
from keepwarm.dialects.body import one_of, portable, shown
from keepwarm.dialects.errors import BadField

SIGNATURE = "keepwarm"
"""What our thinking blocks are signed with: some clients drop a thinking block without a signature
from the history. It carries nothing, and is taken off again when it comes back."""


class BlockIn(msgspec.Struct):
    """Any content block; which fields matter follows from `type`."""

    type: str
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None
    tool_use_id: str | None = None
    tool_name: str | None = None
    content: Any = None
    is_error: bool | None = None
    source: Any = None
    title: str | None = None


class ToolIn(msgspec.Struct):
    """A tool: ours to offer when it brings a schema, the provider's own when it has a `type`."""

    name: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    type: str | None = None
    defer_loading: bool | None = None


_BLOCK_TYPES = (
    "text",
    "image",
    "document",
    "search_result",
    "thinking",
    "redacted_thinking",
    "tool_use",
    "tool_result",
    "server_tool_use",
)
_RESULT_TYPES = ("text", "image", "document", "search_result", "tool_reference")


class PartReader:
    """Turns blocks into parts; knows the tools that a `tool_reference` may name."""

    def __init__(self, tools: list[ToolIn]) -> None:
        self._tools = {tool.name: tool for tool in tools if tool.name}
        self.unserved: list[str] = []

    def offered(self, tools: list[ToolIn]) -> tuple[ToolSpec, ...]:
        """The tools of the prompt's head. Deferred ones stay out: they are told where a result
        refers to them, so that the head stays as it was. The provider's own cannot run here."""
        specs: list[ToolSpec] = []
        for index, tool in enumerate(tools):
            if tool.input_schema is None and tool.type not in (None, "custom"):
                self.unserved.append(f"tool:{tool.type}")
                continue
            if not tool.name:
                raise BadField(f"tools.{index}.name", "required")
            if tool.input_schema is None:
                raise BadField(f"tools.{index}.input_schema", "required")
            if not tool.defer_loading:
                specs.append(_spec(tool))
        return tuple(specs)

    def parts(self, field: str, content: str | list[BlockIn]) -> tuple[Part, ...]:
        """A string is one text block; empty texts carry nothing and are left out."""
        if isinstance(content, str):
            return (Text(text=content),) if content else ()
        read = (self._part(f"{field}.{index}", block) for index, block in enumerate(content))
        return tuple(part for part in read if part is not None)

    def _part(self, field: str, block: BlockIn) -> Part | None:
        match block.type:
            case "text":
                text = _needed(block.text, f"{field}.text")
                return Text(text=text) if text else None
            case "thinking":
                signature = "" if block.signature in (None, SIGNATURE) else str(block.signature)
                return Reasoning(text=_needed(block.thinking, f"{field}.thinking"), signature=signature)
            case "tool_use" | "server_tool_use":
                return _tool_use(field, block)
            case "tool_result":
                return self._tool_result(field, block)
            case "image":
                return _image(field, block)
            case "document" | "search_result":
                return _document(field, block)
            case "redacted_thinking" | "container_upload":
                self.unserved.append(f"block:{block.type}")
                return None
            case other if other.endswith("_tool_result"):
                return self._foreign_result(field, block)
            case other:
                raise one_of(f"{field}.type", other, _BLOCK_TYPES)

    def _tool_result(self, field: str, block: BlockIn) -> ToolResult:
        content = _nested(f"{field}.content", block.content)
        parts = (self._result_part(f"{field}.content.{i}", inner) for i, inner in enumerate(content))
        return ToolResult(
            tool_use_id=_needed(block.tool_use_id, f"{field}.tool_use_id"),
            parts=tuple(part for part in parts if part is not None),
            is_error=bool(block.is_error),
        )

    def _result_part(self, field: str, block: BlockIn) -> Text | Image | None:
        match block.type:
            case "tool_reference":
                return self._referred(block)
            case "text":
                return Text(text=block.text) if block.text else None
            case "image":
                return _image(field, block)
            case "document" | "search_result":
                return _document(field, block)
            case other:
                raise one_of(f"{field}.type", other, _RESULT_TYPES)

    def _referred(self, block: BlockIn) -> Text:
        """A deferred tool, told at the place where the model found it."""
        tool = self._tools.get(block.tool_name or "")
        if tool is None or tool.input_schema is None:
            return Text(text=f"Tool: {block.tool_name or 'unknown'}")
        return Text(text=msgspec.json.encode(_spec(tool)).decode())

    def _foreign_result(self, field: str, block: BlockIn) -> ToolResult:
        """What one of the provider's own tools returned, as JSON."""
        self.unserved.append(f"block:{block.type}")
        return ToolResult(
            tool_use_id=_needed(block.tool_use_id, f"{field}.tool_use_id"),
            parts=(Text(text=msgspec.json.encode(block.content).decode()),),
        )


def _spec(tool: ToolIn) -> ToolSpec:
    return ToolSpec(
        name=tool.name or "", description=tool.description or "", parameters=tool.input_schema or {}
    )


def _needed(value: str | None, field: str) -> str:
    if value is None:
        raise BadField(field, "required")
    return value


def _tool_use(field: str, block: BlockIn) -> ToolUse:
    """Arguments of any shape are kept: a call the model botched stays in the client's history."""
    arguments = {} if block.input is None else block.input
    if isinstance(arguments, dict):
        arguments = portable(arguments)
    elif not isinstance(arguments, str):
        arguments = msgspec.json.encode(arguments).decode()
    return ToolUse(
        id=_needed(block.id, f"{field}.id"),
        name=_needed(block.name, f"{field}.name"),
        arguments=arguments,
    )


def _nested(field: str, content: Any) -> list[BlockIn]:
    """Content inside a block: absent, a string or blocks."""
    if content is None or content == "":
        return []
    if isinstance(content, str):
        return [BlockIn(type="text", text=content)]
    try:
        return msgspec.convert(content, list[BlockIn])
    except msgspec.ValidationError as error:
        raise BadField(field, f"must be a string or a list of blocks: {error}") from error


def _image(field: str, block: BlockIn) -> Image:
    source = block.source if isinstance(block.source, dict) else {}
    match source:
        case {"type": "base64", "media_type": str(media_type), "data": str(data)}:
            return Image(source=f"data:{media_type};base64,{data}")
        case {"type": "url", "url": str(url)}:
            return Image(source=url)
        case _:
            raise BadField(
                f"{field}.source",
                "must be {type: base64, media_type, data} or {type: url, url}, "
                f"got {shown(_without_data(block.source))}",
            )


def _without_data(source: Any) -> Any:
    if isinstance(source, dict):
        return {key: "…" if key == "data" else value for key, value in source.items()}
    return source


def _document(field: str, block: BlockIn) -> Text:
    """Documents made of text, as text, under their title."""
    title = f"{block.title}\n" if block.title else ""
    source = block.source if isinstance(block.source, dict) else {}
    match source:
        case {"type": "text", "data": str(text)}:
            return Text(text=title + text)
        case {"type": "content", "content": inner}:
            return Text(text=title + _words(f"{field}.source.content", inner))
        case _ if block.type == "search_result":
            return Text(text=title + _words(f"{field}.content", block.content))
        case _:
            kind = source.get("media_type") or source.get("type")
            raise BadField(f"{field}.source", f"only documents of type text can be read, got {shown(kind)}")


def _words(field: str, content: Any) -> str:
    return "".join(block.text or "" for block in _nested(field, content))
