"""Tools of Chat Completions: `tools`, and the older `functions`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from keepwarm.chat.messages import ToolSpec
from keepwarm.chat.request import ToolChoice
from keepwarm.dialects.body import JsonBody
from keepwarm.dialects.custom_tools import CustomFormatIn, custom_tool
from keepwarm.dialects.errors import BadField
from keepwarm.dialects.openai_options import NamedIn, read_tool_choice
from keepwarm.dialects.tool_choice import settled


class FunctionIn(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None

    def spec(self) -> ToolSpec:
        return ToolSpec(name=self.name, description=self.description or "", parameters=self.parameters or {})


class GrammarIn(msgspec.Struct):
    syntax: str | None = None
    definition: str | None = None


class NestedFormatIn(msgspec.Struct):
    type: str = "text"
    grammar: GrammarIn | None = None

    def flat(self) -> CustomFormatIn:
        grammar = self.grammar or GrammarIn()
        return CustomFormatIn(type=self.type, syntax=grammar.syntax, definition=grammar.definition)


class CustomIn(msgspec.Struct):
    name: str
    description: str | None = None
    format: NestedFormatIn | None = None


class ToolIn(msgspec.Struct):
    type: str = "function"
    function: FunctionIn | None = None
    custom: CustomIn | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallForm:
    """How calls are worded in the answer."""

    custom_names: frozenset[str] = frozenset()
    is_legacy: bool = False
    """One `function_call` instead of `tool_calls`, as clients of `functions` want it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsOfBody:
    """What one body says of tools."""

    specs: tuple[ToolSpec, ...]
    choice: ToolChoice
    form: CallForm


_TOOLS = msgspec.json.Decoder(list[ToolIn])
_FUNCTIONS = msgspec.json.Decoder(list[FunctionIn])
_FUNCTION_CALL: msgspec.json.Decoder[str | NamedIn] = msgspec.json.Decoder(str | NamedIn)


def read_tools(fields: JsonBody, unserved: list[str]) -> ToolsOfBody:
    """Raises `BadField`; adds the names of tools that cannot run here to `unserved`."""
    functions = fields.optional("functions", _FUNCTIONS)
    tools_in = fields.optional("tools", _TOOLS)
    _refuse_nameless(tools_in or [], functions or [])
    if functions and not tools_in:
        return _legacy(fields, tuple(function.spec() for function in functions), unserved)
    specs = _specs(tools_in or [], unserved)
    custom_names = frozenset(tool.custom.name for tool in tools_in or () if tool.custom)
    return ToolsOfBody(
        specs=specs,
        choice=read_tool_choice(fields, tools=specs, unserved=unserved),
        form=CallForm(custom_names=custom_names),
    )


def _refuse_nameless(tools_in: list[ToolIn], functions: list[FunctionIn]) -> None:
    named: list[tuple[str, FunctionIn | CustomIn | None]] = [
        *((f"functions.{index}", function) for index, function in enumerate(functions)),
        *((f"tools.{index}.function", tool.function) for index, tool in enumerate(tools_in)),
        *((f"tools.{index}.custom", tool.custom) for index, tool in enumerate(tools_in)),
    ]
    for field, one in named:
        if one is not None and not one.name:
            raise BadField(f"{field}.name", 'must not be empty, got ""')


def _specs(tools_in: list[ToolIn], unserved: list[str]) -> tuple[ToolSpec, ...]:
    specs: list[ToolSpec] = []
    for index, tool in enumerate(tools_in):
        if tool.type not in ("function", "custom"):
            unserved.append(f"tool:{tool.type}")
        elif tool.custom is not None:
            form = tool.custom.format.flat() if tool.custom.format else None
            specs.append(custom_tool(tool.custom.name, tool.custom.description, form))
        elif tool.function is not None:
            specs.append(tool.function.spec())
        else:
            raise BadField(f"tools.{index}.{tool.type}", "required")
    return tuple(specs)


def _legacy(fields: JsonBody, specs: tuple[ToolSpec, ...], unserved: list[str]) -> ToolsOfBody:
    match fields.optional("function_call", _FUNCTION_CALL):
        case None | "auto":
            choice = ToolChoice(parallel=False)
        case "none":
            choice = ToolChoice(mode="none", parallel=False)
        case NamedIn(name=str(name)):
            choice = ToolChoice(mode="named", name=name, parallel=False)
        case _:
            raise BadField("function_call", "must be none, auto or {name}")
    choice = settled(choice, field="function_call", tools=specs, unserved=unserved)
    return ToolsOfBody(specs=specs, choice=choice, form=CallForm(is_legacy=True))
