"""A Responses body into a `Turn`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from keepwarm.chat.messages import Chat, Message, Text
from keepwarm.core.sampling import Sampling
from keepwarm.dialects.body import JsonBody
from keepwarm.dialects.dialect import DEFAULT_OPTIONS, DialectOptions
from keepwarm.dialects.errors import BadField
from keepwarm.dialects.openai_logprobs import read_num_top_logprobs
from keepwarm.dialects.openai_options import FormatIn, read_format, read_tool_choice, reasons
from keepwarm.dialects.openai_responses.form import ResponseForm
from keepwarm.dialects.openai_responses.items import ItemIn, ItemReader
from keepwarm.dialects.openai_responses.tools import ToolIn, ToolTable, model_name
from keepwarm.dialects.sampling import read_sampling
from keepwarm.dialects.turn import Turn

_IGNORED = frozenset(
    {
        "client_metadata",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",  # nothing is, and the answer says so
        "stream_options",
        "user",
    }
)
_STORED = {
    "previous_response_id": "responses are not kept here: send the whole conversation as input",
    "conversation": "conversations are not kept here: send the whole one as input",
    "prompt": "prompts are not kept here: send instructions and input",
}
_LOGPROBS = "message.output_text.logprobs"
_SEALED = "reasoning.encrypted_content"


class TextIn(msgspec.Struct):
    format: FormatIn | None = None


class ReasoningIn(msgspec.Struct):
    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


_INPUT: msgspec.json.Decoder[str | list[ItemIn]] = msgspec.json.Decoder(str | list[ItemIn])
_TOOLS = msgspec.json.Decoder(list[ToolIn])
_TEXT = msgspec.json.Decoder(TextIn)
_REASONING = msgspec.json.Decoder(ReasoningIn)
_STRINGS = msgspec.json.Decoder(list[str])
_METADATA = msgspec.json.Decoder(dict[str, Any])
_ANY: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def parse_turn(body: bytes, options: DialectOptions = DEFAULT_OPTIONS) -> Turn:
    """Raises `BadRequest`. A token limit over the room left is not refused: the backend clamps."""
    fields = JsonBody(body)
    model = fields.model()
    read = _read(fields)
    include = fields.optional("include", _STRINGS) or []
    reasoning = fields.optional("reasoning", _REASONING) or ReasoningIn()
    tool_choice = read_tool_choice(
        fields, tools=read.chat.callable_tools, unserved=read.tools.unserved, name_of=model_name
    )
    text = fields.optional("text", _TEXT) or TextIn()
    return Turn(
        model=model,
        chat=read.chat,
        sampling=_sampling(fields, include),
        max_output_tokens=fields.integer("max_output_tokens", low=1),
        stream=fields.flag("stream"),
        tool_choice=tool_choice,
        output_schema=read_format("text.format", text.format, schema_at="schema"),
        reasoning=reasons(reasoning.effort),
        session=fields.text("prompt_cache_key") or "",
        answer_form=ResponseForm(
            echo=_echo(fields),
            tools=read.tools,
            summarises=bool(reasoning.summary or reasoning.generate_summary),
            seals_reasoning=_SEALED in include,
        ),
        unserved=(*read.tools.unserved, *read.items.unserved, *_unserved(fields)),
        num_lead_messages=int(bool(fields.text("instructions"))),
        may_be_shortened=not read.tools.found,  # calls of found tools are named by what the list says
    )


def parse_count(body: bytes, options: DialectOptions = DEFAULT_OPTIONS) -> tuple[str, Chat]:
    """Model and conversation of a body whose tokens are to be counted. Raises `BadRequest`."""
    fields = JsonBody(body)
    return fields.model(), _read(fields).chat


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """A conversation, and what was met in reading it."""

    chat: Chat
    tools: ToolTable
    items: ItemReader


def _read(fields: JsonBody) -> _Read:
    _refuse_what_would_be_stored(fields)
    sent = fields.required("input", _INPUT)
    tools = ToolTable(fields.optional("tools", _TOOLS) or [])
    reader = ItemReader(tools)
    items = [ItemIn(role="user", content=sent)] if isinstance(sent, str) else sent
    messages = reader.messages(items)
    if not messages:
        raise BadField("input", "must hold at least one item that can be read")
    instructions = _instructions(fields)
    chat = Chat(messages=(*instructions, *messages), tools=tools.offered, found_tools=tools.found)
    return _Read(chat=chat, tools=tools, items=reader)


def _refuse_what_would_be_stored(fields: JsonBody) -> None:
    for name, why in _STORED.items():
        if fields.optional(name, _ANY) is not None:
            raise BadField(name, why)
    if fields.flag("background"):
        raise BadField("background", "answers are not kept here: stream this one, or wait for it")


def _instructions(fields: JsonBody) -> tuple[Message, ...]:
    text = fields.text("instructions")
    return (Message(role="system", parts=(Text(text=text),)),) if text else ()


def _sampling(fields: JsonBody, include: list[str]) -> Sampling:
    num_top = read_num_top_logprobs(fields)
    wanted = _LOGPROBS in include
    return read_sampling(fields, max_temperature=2, num_logprobs=(num_top or 0) if wanted else None)


def _echo(fields: JsonBody) -> dict[str, Any]:
    """Fields of the response that repeat the request, with the API's defaults."""
    text = fields.optional("text", _ANY) or {}
    return {
        "background": False,
        "instructions": fields.text("instructions"),
        "max_output_tokens": fields.integer("max_output_tokens", low=1),
        "max_tool_calls": None,
        "metadata": fields.optional("metadata", _METADATA) or {},
        "parallel_tool_calls": fields.flag("parallel_tool_calls", default=True),
        "previous_response_id": None,
        "prompt_cache_key": fields.text("prompt_cache_key"),
        "reasoning": {"effort": None, "summary": None} | (fields.optional("reasoning", _ANY) or {}),
        "safety_identifier": None,
        "service_tier": "default",
        "store": False,
        "temperature": _or(fields.optional("temperature", _ANY), 1.0),
        "text": {"format": {"type": "text"}} | text,
        "tool_choice": fields.optional("tool_choice", _ANY) or "auto",
        "tools": fields.optional("tools", _ANY) or [],
        "top_logprobs": fields.optional("top_logprobs", _ANY) or 0,
        "top_p": _or(fields.optional("top_p", _ANY), 1.0),
        "truncation": "disabled",
        "user": None,
    }


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _unserved(fields: JsonBody) -> list[str]:
    """What is too long is an error that clients know how to act on, never cut short unseen."""
    cut = fields.text("truncation") not in (None, "disabled")
    return [*(["truncation"] if cut else []), *fields.unknown(_IGNORED)]
