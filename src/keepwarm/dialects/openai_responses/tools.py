"""Tools of a Responses body: what the client calls them, and the one name the model knows each by.

    client                                                   model
    {type: function, name: look}                             look
    {type: namespace, name: mcp__files, tools: [read]}       mcp__files__read
    {type: custom, name: apply_patch}                        apply_patch, a function of one text
    {type: tool_search, execution: client}                   tool_search

A call goes back in the client's own terms: `name` and `namespace` apart, a custom tool's text bare.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec

from keepwarm.chat.messages import ToolSpec
from keepwarm.dialects.custom_tools import CustomFormatIn, custom_tool
from keepwarm.dialects.errors import BadField
from keepwarm.dialects.openai_options import NamedIn

SEARCH = "tool_search"
_SEPARATOR = "__"

CallKind = Literal["function", "custom", "search"]


class ToolIn(msgspec.Struct):
    """Any tool; which fields matter follows from `type`."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    format: CustomFormatIn | None = None
    tools: list[ToolIn] | None = None
    defer_loading: bool | None = None
    execution: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAddress:
    """What the client calls a tool."""

    name: str
    namespace: str | None = None
    kind: CallKind = "function"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tool:
    address: ToolAddress
    spec: ToolSpec
    waits: bool
    """Until a search finds it."""


class ToolTable:
    """All tools of one body: those its head offers, and those that its items bring."""

    def __init__(self, tools_in: list[ToolIn]) -> None:
        """Raises `BadField`."""
        self.unserved: list[str] = []
        self._addresses: dict[str, ToolAddress] = {}
        self._found: dict[str, ToolSpec] = {}
        has_search = any(tool.type == SEARCH and tool.execution == "client" for tool in tools_in)
        tools = list(self._read("tools", tools_in))
        self.offered = tuple(tool.spec for tool in tools if not (tool.waits and has_search))

    @property
    def found(self) -> tuple[ToolSpec, ...]:
        """Those that a search found."""
        return tuple(self._found.values())

    def told(self, field: str, tools_in: list[ToolIn]) -> str:
        """What stands for tools that came later, a line each. Raises `BadField`."""
        tools = list(self._read(field, tools_in))
        self._found.update((tool.spec.name, tool.spec) for tool in tools)
        return "".join(msgspec.json.encode(tool.spec).decode() + "\n" for tool in tools)

    def address(self, name: str) -> ToolAddress:
        """The tool that the model means. Models leave the namespace out at times: where only one
        has such a tool, it is that one."""
        known = self._addresses.get(name)
        if known is not None:
            return known
        alike = [each for each in self._addresses.values() if each.namespace and each.name == name]
        return alike[0] if len(alike) == 1 else ToolAddress(name=name)

    def _read(self, field: str, tools_in: list[ToolIn]) -> Iterator[_Tool]:
        for index, tool_in in enumerate(tools_in):
            for tool in self._served(f"{field}.{index}", tool_in):
                known = self._addresses.setdefault(tool.spec.name, tool.address)
                if known == tool.address:
                    yield tool
                else:
                    self.unserved.append("tool:name_twice")

    def _served(self, field: str, tool: ToolIn) -> Iterator[_Tool]:
        match tool.type:
            case "function" | "custom":
                yield _single(field, tool, namespace=None)
            case "namespace":
                yield from _of_namespace(field, tool)
            case "tool_search" if tool.execution == "client":
                yield _search(tool)
            case other:
                self.unserved.append(f"tool:{other}")


def model_name(named: NamedIn) -> str:
    """The one name by which the model knows a tool."""
    name = named.name or ""
    if not named.namespace:
        return name
    return named.namespace.removesuffix(_SEPARATOR) + _SEPARATOR + name


def _of_namespace(field: str, tool: ToolIn) -> Iterator[_Tool]:
    """The first of them tells what the namespace is for."""
    if not tool.name:
        raise BadField(f"{field}.name", "required")
    words = tool.description or ""
    for index, inner in enumerate(tool.tools or ()):
        read = _single(f"{field}.tools.{index}", inner, namespace=tool.name)
        if words:
            description = f"{words}\n\n{read.spec.description}".rstrip()
            read = replace(read, spec=msgspec.structs.replace(read.spec, description=description))
            words = ""
        yield read


def _single(field: str, tool: ToolIn, *, namespace: str | None) -> _Tool:
    if not tool.name:
        raise BadField(f"{field}.name", "required")
    name = model_name(NamedIn(name=tool.name, namespace=namespace))
    is_custom = tool.type == "custom"
    return _Tool(
        address=ToolAddress(name=tool.name, namespace=namespace, kind="custom" if is_custom else "function"),
        spec=custom_tool(name, tool.description, tool.format) if is_custom else _function(name, tool),
        waits=bool(tool.defer_loading),
    )


def _search(tool: ToolIn) -> _Tool:
    return _Tool(address=ToolAddress(name=SEARCH, kind="search"), spec=_function(SEARCH, tool), waits=False)


def _function(name: str, tool: ToolIn) -> ToolSpec:
    return ToolSpec(name=name, description=tool.description or "", parameters=tool.parameters or {})
