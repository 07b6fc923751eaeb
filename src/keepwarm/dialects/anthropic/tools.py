"""Tools of a Messages body: those in the prompt's head, and those that wait until they are found."""

from __future__ import annotations

from typing import Any

import msgspec

from keepwarm.chat.messages import ToolSpec
from keepwarm.chat.request import ToolChoice
from keepwarm.dialects.body import JsonBody, one_of
from keepwarm.dialects.errors import BadField
from keepwarm.dialects.tool_choice import settled

_SERVER_SEARCH = "tool_search_tool_"
_CHOICES = ("auto", "any", "tool", "none")


class ToolIn(msgspec.Struct):
    """A tool: ours to offer when it brings a schema, the provider's own when it has a `type`."""

    name: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    type: str | None = None
    defer_loading: bool | None = None

    def spec(self) -> ToolSpec:
        return ToolSpec(
            name=self.name or "", description=self.description or "", parameters=self.input_schema or {}
        )


class ToolChoiceIn(msgspec.Struct):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


_TOOLS = msgspec.json.Decoder(list[ToolIn])
_CHOICE = msgspec.json.Decoder(ToolChoiceIn)


class ToolsOfBody:
    """What one body says of tools. Deferred ones stay out of the head, so that it stays as it was
    when more of them come; a result that refers to one tells it there. The provider's own cannot
    run here; without its search for tools nothing would find the deferred ones, so the head has them.
    """

    def __init__(self, fields: JsonBody) -> None:
        tools_in = fields.optional("tools", _TOOLS) or []
        served = [tool for index, tool in enumerate(tools_in) if _is_ours(f"tools.{index}", tool)]
        foreign = [tool.type for tool in tools_in if tool.type and tool.input_schema is None]
        searched_there = any(kind.startswith(_SERVER_SEARCH) for kind in foreign)
        waiting = [tool for tool in served if tool.defer_loading and not searched_there]
        self._deferred = {tool.name: tool.spec() for tool in waiting}
        self._found: dict[str, ToolSpec] = {}
        self.unknown: set[str] = set()
        """Names that results referred to and that no deferred tool has."""
        self.offered = tuple(tool.spec() for tool in served if tool.name not in self._deferred)
        self.unserved = [f"tool:{kind}" for kind in foreign]

    @property
    def deferred(self) -> tuple[ToolSpec, ...]:
        """All that wait, told or not."""
        return tuple(self._deferred.values())

    @property
    def found(self) -> tuple[ToolSpec, ...]:
        """The deferred ones that were told so far."""
        return tuple(self._found.values())

    def told(self, name: str) -> str:
        """What stands for a reference to a tool: a line of its own, as results may hold several."""
        spec = self._deferred.get(name)
        if spec is None:
            self.unknown.add(name)
            return f"Tool: {name or 'unknown'}\n"
        self._found[name] = spec
        return msgspec.json.encode(spec).decode() + "\n"


def read_tool_choice(fields: JsonBody, tools: ToolsOfBody) -> ToolChoice:
    """Raises `BadField`. Call it when the messages are read: what they tell may be chosen."""
    sent = fields.optional("tool_choice", _CHOICE)
    if sent is None:
        return ToolChoice()
    return settled(
        _choice(sent),
        field="tool_choice",
        tools=(*tools.offered, *tools.found),
        unserved=tools.unserved,
    )


def _is_ours(field: str, tool: ToolIn) -> bool:
    if tool.input_schema is None and tool.type not in (None, "custom"):
        return False
    if not tool.name:
        raise BadField(f"{field}.name", "required")
    if tool.input_schema is None:
        raise BadField(f"{field}.input_schema", "required")
    return True


def _choice(sent: ToolChoiceIn) -> ToolChoice:
    parallel = not sent.disable_parallel_tool_use
    match sent.type:
        case "auto":
            return ToolChoice(parallel=parallel)
        case "none":
            return ToolChoice(mode="none", parallel=parallel)
        case "any":
            return ToolChoice(mode="any", parallel=parallel)
        case "tool":
            if not sent.name:
                raise BadField("tool_choice.name", "required")
            return ToolChoice(mode="named", name=sent.name, parallel=parallel)
        case other:
            raise one_of("tool_choice.type", other, _CHOICES)
