"""Whatever a client sends is a turn or a bad request, never an accident."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepwarm.chat.request import ChatRequest
from keepwarm.chat.wire import decode_request, encode_request
from keepwarm.core.errors import BadRequest
from keepwarm.core.ids import RequestId, TenantId
from keepwarm.dialects import anthropic, openai_chat, openai_responses
from keepwarm.dialects.dialect import Dialect

_leaves = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
_words = st.sampled_from(
    (
        *("user", "assistant", "system", "tool", "developer", "function", "text", "thinking", "tool_use"),
        *("tool_result", "image", "image_url", "document", "search_result", "base64", "url", "custom"),
        *("tool_reference", "web_search_tool_result", "redacted_thinking", "server_tool_use"),
        *("message", "input_text", "input_image", "function_call", "function_call_output", "reasoning"),
        *("custom_tool_call", "tool_search_call", "tool_search_output", "item_reference", "namespace"),
        *("tool_search", "client", "auto", "any", "required", "none", "allowed_tools", "json_schema"),
    )
)
_names = st.sampled_from(
    (
        *("role", "content", "type", "text", "thinking", "id", "name", "input", "tool_use_id", "source"),
        *("media_type", "data", "url", "title", "tool_calls", "function", "arguments", "tool_call_id"),
        *("image_url", "reasoning_content", "input_schema", "parameters", "description", "tool_name"),
        *("call_id", "output", "summary", "encrypted_content", "namespace", "tools", "format", "schema"),
        *("execution", "defer_loading", "mode", "user_id", "edits", "effort"),
    )
)
_values = st.recursive(
    _leaves | _words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names, inner, max_size=6),
    max_leaves=12,
)
_fields = st.sampled_from(
    (
        *("model", "messages", "max_tokens", "system", "tools", "stop_sequences", "stop", "temperature"),
        *("top_p", "top_k", "min_p", "seed", "n", "logprobs", "top_logprobs", "stream", "stream_options"),
        *("prompt_cache_key", "instructions", "tool_choice", "parallel_tool_calls", "functions"),
        *("function_call", "response_format", "reasoning_effort", "chat_template_kwargs", "reasoning"),
        *("text", "include", "metadata", "thinking", "output_config", "output_format", "truncation"),
        *("context_management", "max_output_tokens", "previous_response_id", "background"),
    )
)
_message = st.fixed_dictionaries(
    {"role": _words, "content": _values},
    optional={"tool_calls": _values, "type": _words, "call_id": _words, "output": _values, "tools": _values},
)
_bodies = st.builds(
    lambda extra, messages: {"model": "m", "max_tokens": 1, "messages": messages, "input": messages} | extra,
    st.dictionaries(_fields, _values, max_size=3),
    st.lists(_message, max_size=3),
)


def request_of(dialect: Dialect, body: bytes) -> ChatRequest:
    turn = dialect.parse_turn(body)
    return turn.request(
        request_id=RequestId("r"), tenant=TenantId("t"), session=turn.session, agent="", use_cache=True
    )


@pytest.mark.parametrize("dialect", [anthropic, openai_chat, openai_responses])
@given(body=_bodies)
@settings(max_examples=300)
def test_any_json_is_a_turn_that_crosses_the_wire_or_a_bad_request(dialect: Dialect, body: Any) -> None:
    with contextlib.suppress(BadRequest):
        request = request_of(dialect, json.dumps(body).encode())
        assert decode_request(encode_request(request)) == request


@pytest.mark.parametrize("dialect", [anthropic, openai_chat, openai_responses])
@pytest.mark.parametrize("depth", [10, 100, 10_000])
def test_deeply_nested_content_is_refused(dialect: Dialect, depth: int) -> None:
    block: Any = "[" * depth + "]" * depth
    messages = b'[{"role": "user", "content": %s}]' % block.encode()
    body = b'{"model": "m", "max_tokens": 1, "messages": %s, "input": %s}' % (messages, messages)
    with pytest.raises(BadRequest):
        dialect.parse_turn(body)


def test_results_within_results_are_refused_however_deep() -> None:
    content = "x"
    for _ in range(200):
        content = json.dumps([{"type": "tool_result", "tool_use_id": "t", "content": "@"}]).replace(
            '"@"', content if content != "x" else '"x"'
        )
    body = '{"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": ' + content + "}]}"
    with pytest.raises(BadRequest, match=r"messages\.0\.content\.0\.content\.0\.type"):
        anthropic.parse_turn(body.encode())
