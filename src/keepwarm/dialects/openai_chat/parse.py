"""A Chat Completions body into a `Turn`."""

from __future__ import annotations

import msgspec

from keepwarm.chat.messages import Chat
from keepwarm.core.sampling import Sampling
from keepwarm.dialects.body import JsonBody
from keepwarm.dialects.errors import BadField
from keepwarm.dialects.openai_chat.messages import MessageIn, ToolIn, read_messages, read_tools
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
        "parallel_tool_calls",
        "reasoning_effort",
        "verbosity",
        "tool_choice",
    }
)
_MAX_TOP_LOGPROBS = 20
_MAX_SEED = 2**63 - 1


class StreamOptionsIn(msgspec.Struct):
    include_usage: bool | None = None


_MESSAGES = msgspec.json.Decoder(list[MessageIn])
_TOOLS = msgspec.json.Decoder(list[ToolIn])
_STOP: msgspec.json.Decoder[str | list[str]] = msgspec.json.Decoder(str | list[str])
_STREAM_OPTIONS = msgspec.json.Decoder(StreamOptionsIn)


def parse_turn(body: bytes) -> Turn:
    """Raises `BadRequest`. A token limit over the room left is not refused: the backend clamps."""
    fields = JsonBody(body)
    model = _model(fields)
    chat, unserved = _chat(fields)
    _refuse_many_choices(fields)
    options = fields.optional("stream_options", _STREAM_OPTIONS)
    return Turn(
        model=model,
        chat=chat,
        sampling=_sampling(fields),
        max_output_tokens=_max_output_tokens(fields),
        stop=_stop(fields),
        stream=fields.flag("stream"),
        include_usage=bool(options and options.include_usage),
        session=fields.text("prompt_cache_key") or "",
        unserved=tuple(unserved + fields.unknown(_IGNORED)),
    )


def parse_count(body: bytes) -> tuple[str, Chat]:
    """Model and conversation of a body whose tokens are to be counted. Raises `BadRequest`."""
    fields = JsonBody(body)
    model = _model(fields)
    chat, _ = _chat(fields)
    return model, chat


def _model(fields: JsonBody) -> str:
    model = fields.text("model")
    if not model:
        raise BadField("model", "required")
    return model


def _chat(fields: JsonBody) -> tuple[Chat, list[str]]:
    messages_in = fields.required("messages", _MESSAGES)
    if not messages_in:
        raise BadField("messages", "must hold at least one message, got []")
    tools, unserved = read_tools(fields.optional("tools", _TOOLS) or [])
    return Chat(messages=read_messages(messages_in), tools=tools), unserved


def _refuse_many_choices(fields: JsonBody) -> None:
    choices = fields.integer("n", low=1)
    if choices is not None and choices > 1:
        raise BadField("n", f"only 1 answer a request is served, got {choices}")


def _max_output_tokens(fields: JsonBody) -> int | None:
    """`max_completion_tokens` is the newer name and outranks `max_tokens`."""
    older = fields.integer("max_tokens", low=1)
    newer = fields.integer("max_completion_tokens", low=1)
    return older if newer is None else newer


def _sampling(fields: JsonBody) -> Sampling:
    temperature = fields.number("temperature", low=0, high=2)
    top_p = fields.number("top_p", low=0, high=1)
    top_k = max(0, fields.integer("top_k", low=-1) or 0)  # -1 is how some clients say "off"
    if top_p == 0:  # the most likely token alone
        top_p, top_k = 1.0, 1
    return Sampling(
        temperature=1.0 if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
        top_k=top_k,
        min_p=fields.number("min_p", low=0, high=1) or 0.0,
        seed=fields.integer("seed", low=-_MAX_SEED - 1, high=_MAX_SEED),
        num_logprobs=_num_logprobs(fields),
    )


def _num_logprobs(fields: JsonBody) -> int | None:
    wanted = fields.flag("logprobs")
    num_top = fields.integer("top_logprobs", low=0, high=_MAX_TOP_LOGPROBS)
    if num_top and not wanted:
        raise BadField("top_logprobs", f"needs logprobs: true, got {num_top} without it")
    return (num_top or 0) if wanted else None


def _stop(fields: JsonBody) -> tuple[str, ...]:
    sent = fields.optional("stop", _STOP)
    stop = (sent,) if isinstance(sent, str) else tuple(sent or ())
    for index, sequence in enumerate(stop):
        if not sequence:
            raise BadField(f"stop.{index}", 'must not be empty, got ""')
    return stop
