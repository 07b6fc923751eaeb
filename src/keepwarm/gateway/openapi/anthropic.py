"""Schemas of Anthropic Messages."""

from __future__ import annotations

from keepwarm.gateway.openapi.schema import (
    ANY_OBJECT,
    BOOLEAN,
    COUNT,
    NAME,
    STRING,
    Schema,
    array,
    between,
    choice,
    constant,
    described,
    integer,
    one_of,
    or_null,
    record,
    ref,
    tagged,
    texts,
)

_CACHE_MARK = {"cache_control": described(ANY_OBJECT, "Ignored: everything is cached.")}

_SOURCE = one_of(
    tagged("base64", {"media_type": STRING, "data": STRING}),
    tagged("url", {"url": STRING}),
)
_TEXT = tagged("text", {"text": STRING}, _CACHE_MARK)
_IMAGE = tagged("image", {"source": _SOURCE}, _CACHE_MARK)
_THINKING = tagged("thinking", {"thinking": STRING}, {"signature": STRING})
_TOOL_USE = tagged("tool_use", {"id": NAME, "name": NAME, "input": ANY_OBJECT}, _CACHE_MARK)
_TOOL_RESULT = tagged(
    "tool_result",
    {"tool_use_id": NAME},
    {
        "content": texts(one_of(_TEXT, _IMAGE, tagged("tool_reference", {"tool_name": NAME}))),
        "is_error": BOOLEAN,
        **_CACHE_MARK,
    },
)

_USER = record(
    {"role": constant("user"), "content": texts(one_of(_TEXT, _IMAGE, _TOOL_RESULT))},
    about="A turn of the user, with the results of the tools that the last answer called.",
)
_ASSISTANT = record(
    {"role": constant("assistant"), "content": texts(one_of(_TEXT, _THINKING, _TOOL_USE))},
    about="An answer, as it was given.",
)
_SYSTEM = record({"role": constant("system"), "content": texts(_TEXT)}, about="Instructions on the way.")

_TOOL = one_of(
    record(
        {"name": NAME, "input_schema": ANY_OBJECT},
        {"description": STRING, "defer_loading": BOOLEAN, **_CACHE_MARK},
    ),
    described(
        record({"type": STRING, "name": NAME}),
        "A tool of the provider's own: counted as unserved, not offered.",
    ),
)
_TOOL_CHOICE = record({"type": choice("auto", "any", "none")}, {"disable_parallel_tool_use": BOOLEAN})

_PROMPT = {
    "model": described(NAME, "The served name, or another that means it: see GET /v1/models."),
    "messages": array(one_of(_USER, _ASSISTANT, _SYSTEM), at_least=1),
}
_PROMPT_OPTIONS = {"system": texts(_TEXT), "tools": array(_TOOL), "tool_choice": _TOOL_CHOICE}

_USAGE = record(
    {
        "input_tokens": described(COUNT, "Tokens of the prompt that were read now."),
        "cache_read_input_tokens": described(COUNT, "Tokens of the prompt that were read before."),
        "cache_creation_input_tokens": COUNT,
        "output_tokens": COUNT,
    }
)

SCHEMAS: dict[str, Schema] = {
    "AnthropicMessagesRequest": record(
        {
            **_PROMPT,
            "max_tokens": integer(1, about="Cut down to the room that the context leaves, never refused."),
        },
        {
            **_PROMPT_OPTIONS,
            "stream": BOOLEAN,
            "stop_sequences": array(NAME),
            "temperature": between(0, 1),
            "top_p": between(0, 1),
            "top_k": integer(0),
            "metadata": ANY_OBJECT,
        },
    ),
    "AnthropicCountRequest": record(_PROMPT, _PROMPT_OPTIONS),
    "AnthropicCount": record({"input_tokens": COUNT}),
    "AnthropicMessage": record(
        {
            "id": NAME,
            "type": constant("message"),
            "role": constant("assistant"),
            "model": described(NAME, "As it was asked for."),
            "content": array(one_of(_TEXT, _THINKING, _TOOL_USE)),
            "stop_reason": choice(
                "end_turn", "stop_sequence", "max_tokens", "model_context_window_exceeded", "tool_use"
            ),
            "stop_sequence": or_null(STRING),
            "usage": _USAGE,
        }
    ),
    "AnthropicError": record(
        {
            "type": constant("error"),
            "error": record({"type": STRING, "message": STRING}),
            "request_id": NAME,
        }
    ),
}
EVENT = record(
    {
        "event": choice(
            *("message_start", "content_block_start", "content_block_delta", "content_block_stop"),
            *("message_delta", "message_stop", "ping", "error"),
        ),
        "data": described(STRING, "JSON, whose `type` is the event's name."),
    }
)
REQUEST, COUNT_REQUEST = ref("AnthropicMessagesRequest"), ref("AnthropicCountRequest")
ANSWER, COUNT_ANSWER = ref("AnthropicMessage"), ref("AnthropicCount")
ERROR = ref("AnthropicError")
