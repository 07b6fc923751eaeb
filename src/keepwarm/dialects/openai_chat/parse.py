"""A Chat Completions body into a `Turn`."""

from __future__ import annotations

from typing import Any

import msgspec

from keepwarm.chat.messages import Chat
from keepwarm.core.sampling import Sampling
from keepwarm.dialects.body import JsonBody
from keepwarm.dialects.dialect import DEFAULT_OPTIONS, DialectOptions
from keepwarm.dialects.errors import BadField
from keepwarm.dialects.openai_chat.messages import MessageIn, MessageReader
from keepwarm.dialects.openai_chat.tools import ToolsOfBody, read_tools
from keepwarm.dialects.openai_logprobs import read_num_top_logprobs
from keepwarm.dialects.openai_options import FormatIn, read_format, reasons
from keepwarm.dialects.sampling import read_sampling
from keepwarm.dialects.turn import Turn

_IGNORED = frozenset(
    {
        "metadata",
        "user",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_retention",
        "prompt_cache_options",
        "verbosity",
    }
)


class StreamOptionsIn(msgspec.Struct):
    include_usage: bool | None = None


class TemplateArgumentsIn(msgspec.Struct):
    """What clients of other servers tell a model's template."""

    enable_thinking: bool | None = None
    thinking: bool | None = None


_MESSAGES = msgspec.json.Decoder(list[MessageIn])
_STREAM_OPTIONS = msgspec.json.Decoder(StreamOptionsIn)
_FORMAT = msgspec.json.Decoder(FormatIn)
_TEMPLATE_ARGUMENTS = msgspec.json.Decoder(TemplateArgumentsIn)


def parse_turn(body: bytes, options: DialectOptions = DEFAULT_OPTIONS) -> Turn:
    """Raises `BadRequest`. A token limit over the room left is not refused: the backend clamps."""
    fields = JsonBody(body)
    model = fields.model()
    chat, tools, unserved = _chat(fields)
    _refuse_many_choices(fields)
    stream_options = fields.optional("stream_options", _STREAM_OPTIONS)
    return Turn(
        model=model,
        chat=chat,
        sampling=_sampling(fields),
        max_output_tokens=_max_output_tokens(fields),
        stop=fields.stop("stop"),
        stream=fields.flag("stream"),
        include_usage=bool(stream_options and stream_options.include_usage),
        tool_choice=tools.choice,
        output_schema=_output_schema(fields),
        reasoning=_reasoning(fields),
        session=fields.text("prompt_cache_key") or "",
        unserved=(*unserved, *fields.unknown(_IGNORED)),
        answer_form=tools.form,
    )


def parse_count(body: bytes, options: DialectOptions = DEFAULT_OPTIONS) -> tuple[str, Chat]:
    """Model and conversation of a body whose tokens are to be counted. Raises `BadRequest`."""
    fields = JsonBody(body)
    return fields.model(), _chat(fields)[0]


def _chat(fields: JsonBody) -> tuple[Chat, ToolsOfBody, list[str]]:
    messages_in = fields.required("messages", _MESSAGES)
    if not messages_in:
        raise BadField("messages", "must hold at least one message, got []")
    reader = MessageReader()
    messages = reader.messages(messages_in)
    tools = read_tools(fields, reader.unserved)
    return Chat(messages=messages, tools=tools.specs), tools, reader.unserved


def _refuse_many_choices(fields: JsonBody) -> None:
    choices = fields.integer("n", low=1)
    if choices is not None and choices > 1:
        raise BadField("n", f"only 1 answer a request is served, got {choices}")


def _max_output_tokens(fields: JsonBody) -> int | None:
    """`max_completion_tokens` is the newer name and outranks `max_tokens`."""
    older = fields.integer("max_tokens", low=1)
    newer = fields.integer("max_completion_tokens", low=1)
    return older if newer is None else newer


def _output_schema(fields: JsonBody) -> dict[str, Any] | None:
    sent = fields.optional("response_format", _FORMAT)
    return read_format("response_format", sent, schema_at="json_schema.schema")


def _reasoning(fields: JsonBody) -> bool | None:
    """A switch for the template outranks an effort, which is a matter of more or less."""
    arguments = fields.optional("chat_template_kwargs", _TEMPLATE_ARGUMENTS) or TemplateArgumentsIn()
    by_effort = reasons(fields.text("reasoning_effort"))
    by_switch = arguments.enable_thinking if arguments.thinking is None else arguments.thinking
    return by_effort if by_switch is None else by_switch


def _sampling(fields: JsonBody) -> Sampling:
    wanted = fields.flag("logprobs")
    num_top = read_num_top_logprobs(fields)
    if num_top and not wanted:
        raise BadField("top_logprobs", f"needs logprobs: true, got {num_top} without it")
    return read_sampling(fields, max_temperature=2, num_logprobs=(num_top or 0) if wanted else None)
