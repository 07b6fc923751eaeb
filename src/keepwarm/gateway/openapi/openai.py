"""Schemas of OpenAI Chat Completions and OpenAI Responses."""

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

_MODEL = described(NAME, "The served name, or another that means it: see GET /v1/models.")
_MAX_TOKENS = integer(1, about="Cut down to the room that the context leaves, never refused.")
_SESSION = described(STRING, "The conversation's id, where no header names it.")

_TEXT = tagged("text", {"text": STRING})
_IMAGE = tagged("image_url", {"image_url": record({"url": STRING})})
_FUNCTION_CALL = record({"name": NAME, "arguments": described(STRING, "JSON, broken or not.")})
_TOOL_CALL = record({"id": NAME, "type": constant("function"), "function": _FUNCTION_CALL})

_CHAT_MESSAGE = one_of(
    record({"role": choice("system", "developer"), "content": texts(_TEXT)}),
    record({"role": constant("user"), "content": texts(one_of(_TEXT, _IMAGE))}),
    record(
        {"role": constant("assistant"), "content": texts(_TEXT)},
        {"reasoning_content": STRING, "tool_calls": array(_TOOL_CALL)},
    ),
    record({"role": constant("tool"), "tool_call_id": NAME, "content": texts(_TEXT)}),
)
_CHAT_TOOL = tagged(
    "function", {"function": record({"name": NAME}, {"description": STRING, "parameters": ANY_OBJECT})}
)
_CHAT_USAGE = record(
    {
        "prompt_tokens": COUNT,
        "completion_tokens": COUNT,
        "total_tokens": COUNT,
        "prompt_tokens_details": record(
            {"cached_tokens": described(COUNT, "Tokens of the prompt that were read before.")}
        ),
    }
)
_CHAT_CHOICE = record(
    {
        "index": COUNT,
        "message": record(
            {"role": constant("assistant"), "content": or_null(STRING)},
            {"reasoning_content": STRING, "tool_calls": array(_TOOL_CALL)},
        ),
        "logprobs": or_null(ANY_OBJECT),
        "finish_reason": choice("stop", "length", "tool_calls"),
    }
)

_INPUT_TEXT = tagged("input_text", {"text": STRING})
_OUTPUT_TEXT = tagged("output_text", {"text": STRING})
_INPUT_ITEM = one_of(
    record({"role": choice("user", "system", "developer"), "content": texts(_INPUT_TEXT)}),
    record({"type": constant("message"), "role": constant("assistant"), "content": texts(_OUTPUT_TEXT)}),
    tagged("function_call", {"call_id": NAME, "name": NAME, "arguments": STRING}),
    tagged("function_call_output", {"call_id": NAME, "output": STRING}),
)
_RESPONSES_TOOL = one_of(
    tagged("function", {"name": NAME}, {"description": STRING, "parameters": ANY_OBJECT}),
    described(tagged("web_search", {}), "A tool of the provider's own: counted as unserved, not offered."),
)

SCHEMAS: dict[str, Schema] = {
    "ChatCompletionRequest": record(
        {"model": _MODEL, "messages": array(_CHAT_MESSAGE, at_least=1)},
        {
            "max_tokens": _MAX_TOKENS,
            "max_completion_tokens": _MAX_TOKENS,
            "n": integer(1, 1),
            "stream": BOOLEAN,
            "stream_options": record({}, {"include_usage": BOOLEAN}),
            "stop": one_of(NAME, array(NAME)),
            "temperature": between(0, 2),
            "top_p": between(0, 1),
            "top_k": integer(-1),
            "min_p": between(0, 1),
            "seed": integer(-(2**63), 2**63 - 1),
            "logprobs": BOOLEAN,
            "top_logprobs": integer(0, 20),
            "tools": array(_CHAT_TOOL),
            "tool_choice": choice("auto", "none", "required"),
            "prompt_cache_key": _SESSION,
        },
    ),
    "ChatCompletion": record(
        {
            "id": NAME,
            "object": constant("chat.completion"),
            "created": COUNT,
            "model": described(NAME, "As it was asked for."),
            "choices": array(_CHAT_CHOICE, at_least=1),
            "usage": _CHAT_USAGE,
        }
    ),
    "ResponsesRequest": record(
        {"model": _MODEL, "input": one_of(NAME, array(_INPUT_ITEM, at_least=1))},
        {
            "instructions": STRING,
            "max_output_tokens": _MAX_TOKENS,
            "stream": BOOLEAN,
            "store": described(BOOLEAN, "Ignored: nothing is stored."),
            "temperature": between(0, 2),
            "top_p": between(0, 1),
            "tools": array(_RESPONSES_TOOL),
            "tool_choice": choice("auto", "none", "required"),
            "parallel_tool_calls": BOOLEAN,
            "prompt_cache_key": _SESSION,
        },
    ),
    "Response": record(
        {
            "id": NAME,
            "object": constant("response"),
            "model": described(NAME, "As it was asked for."),
            "status": choice("completed", "incomplete", "failed", "in_progress"),
            "output": array(ANY_OBJECT),
        }
    ),
    "OpenAIError": record(
        {
            "error": record(
                {"message": STRING, "type": STRING, "param": or_null(STRING), "code": or_null(STRING)}
            )
        }
    ),
}
EVENT = record({"data": described(STRING, "JSON, or `[DONE]` at the end of chat completions.")})
CHAT_REQUEST, CHAT_ANSWER = ref("ChatCompletionRequest"), ref("ChatCompletion")
RESPONSES_REQUEST, RESPONSES_ANSWER = ref("ResponsesRequest"), ref("Response")
ERROR = ref("OpenAIError")
