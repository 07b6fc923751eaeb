"""Anthropic's content blocks, into the parts of a `Chat`."""

from __future__ import annotations

from typing import Any

import msgspec

from keepwarm.chat.conversation import unread
from keepwarm.chat.messages import Image, Part, Reasoning, Text, ToolResult, ToolUse
from keepwarm.dialects.anthropic.tools import ToolsOfBody
from keepwarm.dialects.arguments import read_arguments
from keepwarm.dialects.body import one_of, shown
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


_BLOCK_TYPES = (
    "text",
    "image",
    "document",
    "search_result",
    "thinking",
    "tool_use",
    "tool_result",
)
_FOREIGN_TYPES = (
    "redacted_thinking",
    "server_tool_use",
    "mcp_tool_use",
    "container_upload",
    "compaction",
    "fallback",
)
_RESULT_TYPES = ("text", "image", "document", "search_result", "tool_reference")


class PartReader:
    """Turns blocks into parts; knows the tools that a `tool_reference` may name."""

    def __init__(self, tools: ToolsOfBody) -> None:
        self._tools = tools
        self.unserved: list[str] = []

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
                return Reasoning(text=block.thinking, signature=signature) if block.thinking else None
            case "tool_use":
                return _tool_use(field, block)
            case "tool_result":
                return self._tool_result(field, block)
            case "image":
                return self._image(field, block)
            case "document" | "search_result":
                return self._document(field, block)
            case other if _is_the_providers(other):
                self.unserved.append(f"block:{other}")
                return None
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
                return Text(text=self._tools.told(block.tool_name or ""))
            case "text":
                return Text(text=block.text) if block.text else None
            case "image":
                return self._image(field, block)
            case "document" | "search_result":
                return self._document(field, block)
            case other:
                raise one_of(f"{field}.type", other, _RESULT_TYPES)

    def _image(self, field: str, block: BlockIn) -> Image:
        self.unserved.append("block:image")
        return Image(source=_image_source(field, block))

    def _document(self, field: str, block: BlockIn) -> Text:
        """Documents made of text, as text, under their title; of others, that they were there."""
        title = f"{block.title}\n" if block.title else ""
        match block.source:
            case {"type": "text", "data": str(text)}:
                return Text(text=title + text)
            case {"type": "content", "content": inner}:
                return Text(text=title + _words(f"{field}.source.content", inner))
            case _ if block.type == "search_result":
                return Text(text=title + _words(f"{field}.content", block.content))
            case _:
                self.unserved.append("block:document")
                return Text(text=title + unread("document"))


def _is_the_providers(block_type: str) -> bool:
    """What tools of the provider's own, or its other servers, left in a conversation."""
    return block_type in _FOREIGN_TYPES or block_type.endswith("_tool_result")


def _needed(value: str | None, field: str) -> str:
    if value is None:
        raise BadField(field, "required")
    return value


def _tool_use(field: str, block: BlockIn) -> ToolUse:
    return ToolUse(
        id=_needed(block.id, f"{field}.id"),
        name=_needed(block.name, f"{field}.name"),
        arguments=read_arguments(block.input),
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


def _image_source(field: str, block: BlockIn) -> str:
    match block.source:
        case {"type": "base64", "media_type": str(media_type), "data": str(data)}:
            return f"data:{media_type};base64,{data}"
        case {"type": "url", "url": str(source)} | {"type": "file", "file_id": str(source)}:
            return source
        case _:
            raise BadField(
                f"{field}.source",
                "must be {type: base64, media_type, data}, {type: url, url} or {type: file, file_id}, "
                f"got {shown(_without_data(block.source))}",
            )


def _without_data(source: Any) -> Any:
    if isinstance(source, dict):
        return {key: "…" if key == "data" else value for key, value in source.items()}
    return source


def _words(field: str, content: Any) -> str:
    return "".join(block.text or "" for block in _nested(field, content))
