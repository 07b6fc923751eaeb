"""Options that Chat Completions and Responses share: they differ in how deep the names are nested."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from keepwarm.chat.messages import ToolSpec
from keepwarm.chat.request import ToolChoice
from keepwarm.dialects.body import JsonBody, one_of
from keepwarm.dialects.errors import BadField
from keepwarm.dialects.tool_choice import settled

_CHOICES = ("none", "auto", "required")
_CHOICE_TYPES = ("function", "custom", "allowed_tools")
_FORMATS = ("text", "json_object", "json_schema")


class NamedIn(msgspec.Struct):
    """Anything that has a name, perhaps in a namespace."""

    name: str | None = None
    namespace: str | None = None


class ChosenIn(msgspec.Struct):
    """One tool, as a choice names it."""

    type: str
    name: str | None = None
    namespace: str | None = None
    function: NamedIn | None = None
    custom: NamedIn | None = None

    def named(self) -> NamedIn:
        """The tool, however deep its name is."""
        return self.function or self.custom or NamedIn(name=self.name, namespace=self.namespace)


class AllowedIn(msgspec.Struct):
    """A choice among some of the tools."""

    mode: str = "auto"
    tools: list[ChosenIn] = []


class ToolChoiceIn(ChosenIn):
    """A choice that is more than a word."""

    mode: str = "auto"
    tools: list[ChosenIn] = []
    allowed_tools: AllowedIn | None = None


class SchemaIn(msgspec.Struct):
    """The schema of an answer."""

    name: str | None = None
    schema: dict[str, Any] | None = None


class FormatIn(msgspec.Struct):
    """The form of an answer."""

    type: str = "text"
    schema: dict[str, Any] | None = None
    json_schema: SchemaIn | None = None


_TOOL_CHOICE: msgspec.json.Decoder[str | ToolChoiceIn] = msgspec.json.Decoder(str | ToolChoiceIn)

NameOf = Callable[[NamedIn], str]
"""What the model calls a tool."""


def plain_name(named: NamedIn) -> str:
    """Where there are no namespaces."""
    return named.name or ""


def read_tool_choice(
    fields: JsonBody, *, tools: Sequence[ToolSpec], unserved: list[str], name_of: NameOf = plain_name
) -> ToolChoice:
    """`tool_choice` and `parallel_tool_calls`. Raises `BadField`."""
    sent = fields.optional("tool_choice", _TOOL_CHOICE)
    parallel = fields.flag("parallel_tool_calls", default=True)
    match sent:
        case None:
            return ToolChoice(parallel=parallel)
        case str():
            choice = _choice_by_word("tool_choice", sent, parallel)
        case _:
            choice = _choice_by_tool(sent, parallel, unserved, name_of)
    return settled(choice, field="tool_choice", tools=tools, unserved=unserved)


def read_format(field: str, sent: FormatIn | None, *, schema_at: str) -> dict[str, Any] | None:
    """The schema of the answer: {} is any object, None any text. Raises `BadField`."""
    if sent is None:
        return None
    match sent.type:
        case "text":
            return None
        case "json_object":
            return {}
        case "json_schema":
            return _schema(f"{field}.{schema_at}", sent)
        case other:
            raise one_of(f"{field}.type", other, _FORMATS)


def reasons(effort: str | None) -> bool | None:
    """Whether an effort means that the model should think."""
    return None if effort is None else effort != "none"


def _schema(field: str, sent: FormatIn) -> dict[str, Any]:
    if sent.schema is not None:
        return sent.schema
    if sent.json_schema is None or sent.json_schema.schema is None:
        raise BadField(field, "required")
    return sent.json_schema.schema


def _choice_by_word(field: str, word: str, parallel: bool) -> ToolChoice:
    match word:
        case "none":
            return ToolChoice(mode="none", parallel=parallel)
        case "auto":
            return ToolChoice(parallel=parallel)
        case "required":
            return ToolChoice(mode="any", parallel=parallel)
        case _:
            raise one_of(field, word, _CHOICES)


def _choice_by_tool(sent: ToolChoiceIn, parallel: bool, unserved: list[str], name_of: NameOf) -> ToolChoice:
    match sent.type:
        case "function" | "custom":
            return ToolChoice(mode="named", name=name_of(sent.named()), parallel=parallel)
        case "allowed_tools":
            return _choice_among(sent, parallel, unserved, name_of)
        case other:
            return _choice_of_a_foreign_tool(other, parallel, unserved)


def _choice_among(sent: ToolChoiceIn, parallel: bool, unserved: list[str], name_of: NameOf) -> ToolChoice:
    """One allowed tool that is required is a named one; else that only some are allowed is counted:
    the head of the prompt stays as it is for all."""
    allowed = sent.allowed_tools or AllowedIn(mode=sent.mode, tools=sent.tools)
    choice = _choice_by_word("tool_choice.mode", allowed.mode, parallel)
    if choice.mode == "any" and len(allowed.tools) == 1:
        return ToolChoice(mode="named", name=name_of(allowed.tools[0].named()), parallel=parallel)
    unserved.append("tool_choice.allowed_tools")
    return choice


def _choice_of_a_foreign_tool(kind: str, parallel: bool, unserved: list[str]) -> ToolChoice:
    """One of the provider's own tools, which cannot run here."""
    if f"tool:{kind}" not in unserved:
        raise one_of("tool_choice.type", kind, _CHOICE_TYPES)
    unserved.append("tool_choice")
    return ToolChoice(parallel=parallel)
