"""Chat Completions bodies: what real clients send is read, what cannot be served is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from keepwarm.chat.messages import Image, Message, Reasoning, Text, ToolResult, ToolUse
from keepwarm.dialects import anthropic, openai_chat
from keepwarm.dialects.turn import Turn
from tests.dialects.refusals import assert_refused

SAMPLES = Path(__file__).parents[1] / "fixtures" / "client_samples"
MINIMAL: dict[str, Any] = {"model": "smol", "messages": [{"role": "user", "content": "Hello"}]}
CALL = {"id": "c1", "type": "function", "function": {"name": "Read", "arguments": '{"path":"a"}'}}


def parse(**fields: Any) -> Turn:
    return openai_chat.parse_turn(json.dumps(MINIMAL | fields).encode())


@pytest.mark.parametrize(
    "name", ["opencode_chat_1.json", "opencode_chat_2.json", "opencode_title.json", "qwen_chat_1.json"]
)
def test_what_real_clients_send_is_read_whole(name: str) -> None:
    sent = json.loads((SAMPLES / name).read_text())["body"]
    turn = openai_chat.parse_turn(json.dumps(sent).encode())
    assert len(turn.chat.messages) == len(sent["messages"])
    assert len(turn.chat.tools) == len(sent.get("tools", []))
    assert turn.stream
    assert turn.include_usage
    assert turn.unserved == ()


def test_tools_their_calls_and_results_are_read() -> None:
    messages = [
        {"role": "developer", "content": "Rules"},
        {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
        {"role": "assistant", "content": None, "reasoning_content": "Hm", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "words"}]},
        {"role": "tool", "tool_call_id": "c2", "content": "more"},
    ]
    tools = [{"type": "function", "function": {"name": "Read"}}, {"type": "web_search"}]
    turn = parse(messages=messages, tools=tools)
    assert turn.chat.messages == (
        Message(role="system", parts=(Text(text="Rules"),)),
        Message(role="user", parts=(Text(text="Hello"),)),
        Message(
            role="assistant",
            parts=(Reasoning(text="Hm"), ToolUse(id="c1", name="Read", arguments={"path": "a"})),
        ),
        Message(
            role="user",
            parts=(
                ToolResult(tool_use_id="c1", parts=(Text(text="words"),)),
                ToolResult(tool_use_id="c2", parts=(Text(text="more"),)),
            ),
        ),
    )
    assert [tool.name for tool in turn.chat.tools] == ["Read"]
    assert turn.unserved == ("tool:web_search",)


def test_both_dialects_read_one_conversation_alike() -> None:
    ours = parse(messages=[{"role": "system", "content": "Rules"}, *MINIMAL["messages"]])
    theirs = anthropic.parse_turn(json.dumps(MINIMAL | {"max_tokens": 1, "system": "Rules"}).encode())
    assert ours.chat == theirs.chat


@pytest.mark.parametrize(
    ("sent", "kept"), [("", {}), ("{oops", "{oops"), ("[1]", "[1]"), ('{"a": 1}', {"a": 1})]
)
def test_broken_arguments_in_the_history_never_brick_a_conversation(sent: str, kept: Any) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "Do", "arguments": sent}}
    message = parse(messages=[{"role": "assistant", "tool_calls": [call]}]).chat.messages[0]
    assert message.parts == (ToolUse(id="c1", name="Do", arguments=kept),)


def test_images_are_read_as_they_stand() -> None:
    parts = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}]
    message = parse(messages=[{"role": "user", "content": parts}]).chat.messages[0]
    assert message.parts == (Image(source="data:image/png;base64,QUJD"),)


def test_sampling_is_taken_over() -> None:
    turn = parse(
        temperature=2,
        top_p=0.5,
        top_k=7,
        min_p=0.1,
        seed=11,
        stop="END",
        logprobs=True,
        top_logprobs=3,
        max_tokens=5,
        max_completion_tokens=9,
    )
    sampling = turn.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (2.0, 0.5, 7, 0.1)
    assert (sampling.seed, sampling.num_logprobs) == (11, 3)
    assert turn.stop == ("END",)
    assert turn.max_output_tokens == 9


def test_absent_and_null_fields_mean_the_defaults() -> None:
    names = ("temperature", "top_p", "stop", "seed", "n", "logprobs", "max_tokens", "stream_options", "tools")
    assert parse(**dict.fromkeys(names)) == parse()
    assert parse().max_output_tokens is None
    assert parse().sampling.num_logprobs is None
    assert parse(logprobs=True).sampling.num_logprobs == 0


def test_the_smallest_nucleus_is_the_most_likely_token() -> None:
    sampling = parse(top_p=0).sampling
    assert (sampling.top_p, sampling.top_k) == (1.0, 1)


def test_what_nothing_acts_on_is_reported_by_name() -> None:
    turn = parse(frequency_penalty=1, brand_new={}, user="me", prompt_cache_key="conversation 7")
    assert turn.unserved == ("frequency_penalty", "brand_new")
    assert turn.session == "conversation 7"


@pytest.mark.parametrize(
    ("fields", "field", "said"),
    [
        ({"model": None}, "model", "required"),
        ({"messages": None}, "messages", "required"),
        ({"messages": []}, "messages", "at least one message"),
        (
            {"messages": [{"role": "robot", "content": "x"}]},
            "messages.0.role",
            '"robot" is not one of system',
        ),
        ({"messages": [{"content": "x"}]}, "messages.0.role", "required"),
        ({"messages": [{"role": "user"}]}, "messages.0.content", "required"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content", "string or array"),
        (
            {"messages": [{"role": "user", "content": [{"type": "smell"}]}]},
            "messages.0.content.0.type",
            '"smell" is not one of text',
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages.0.content.0.text",
            "required",
        ),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.tool_call_id", "required"),
        ({"max_tokens": 0}, "max_tokens", "at least 1, got 0"),
        ({"max_completion_tokens": "9"}, "max_completion_tokens", 'integer, got "9"'),
        ({"temperature": 2.1}, "temperature", "between 0 and 2, got 2.1"),
        ({"temperature": []}, "temperature", "number, got []"),
        ({"top_p": -0.1}, "top_p", "between 0 and 1"),
        ({"min_p": 1.1}, "min_p", "between 0 and 1"),
        ({"n": 2}, "n", "only 1 answer a request is served, got 2"),
        ({"n": 0}, "n", "at least 1"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "between 0 and 20, got 21"),
        ({"top_logprobs": 3}, "top_logprobs", "needs logprobs: true"),
        ({"stop": 5}, "stop", "string or array, got 5"),
        ({"stop": [""]}, "stop.0", "must not be empty"),
        ({"seed": 2**70}, "seed", "between"),
        ({"stream": 1}, "stream", "boolean, got 1"),
        ({"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage", "boolean"),
        ({"tools": [{"type": "function"}]}, "tools.0.function", "required"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools.0.function.name", "required"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools.0.function.name", "empty"),
        ({"tools": [{"type": "custom", "custom": {"name": ""}}]}, "tools.0.custom.name", "empty"),
        ({"functions": [{"name": ""}]}, "functions.0.name", "empty"),
    ],
)
def test_bad_input_is_named(fields: dict[str, Any], field: str, said: str) -> None:
    error = assert_refused(openai_chat, MINIMAL | fields, field, said)
    assert error["param"] == field
