"""Messages bodies: what real clients send is read, what cannot be served is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from keepwarm.chat.messages import Image, Message, Reasoning, Text, ToolResult, ToolUse
from keepwarm.core.errors import BadRequest
from keepwarm.dialects import anthropic
from keepwarm.dialects.anthropic.blocks import SIGNATURE
from keepwarm.dialects.turn import Turn
from tests.dialects.refusals import assert_refused

SAMPLES = Path(__file__).parents[1] / "fixtures" / "client_samples"
MINIMAL: dict[str, Any] = {
    "model": "smol",
    "max_tokens": 16,
    "messages": [{"role": "user", "content": "Hello"}],
}


def parse(**fields: Any) -> Turn:
    return anthropic.parse_turn(json.dumps(MINIMAL | fields).encode())


def only_part(content: Any, *, role: str = "user", **fields: Any) -> Any:
    turn = parse(messages=[{"role": role, "content": content}], **fields)
    (part,) = turn.chat.messages[0].parts
    return part


def sample_body(name: str) -> bytes:
    return json.dumps(json.loads((SAMPLES / name).read_text())["body"]).encode()


@pytest.mark.parametrize(
    "name",
    sorted(
        path.name
        for path in SAMPLES.glob("*.json")
        if path.name.startswith(("cc_", "opencode_anthropic"))
        and "count_tokens" not in path.name
        and "models" not in path.name
    ),
)
def test_what_real_clients_send_is_read_whole(name: str) -> None:
    sent = json.loads(sample_body(name))
    turn = anthropic.parse_turn(sample_body(name))
    first = 1 if "system" in sent else 0
    assert len(turn.chat.messages) == len(sent["messages"]) + first
    assert [message.role for message in turn.chat.messages[first:]] == [m["role"] for m in sent["messages"]]
    assert turn.stream is True
    assert turn.max_output_tokens == 32_000
    assert set(turn.unserved) <= {"tool:web_search_20250305", "block:image"}
    assert len(turn.normalised) == (1 if name.startswith("cc_") else 0)


@pytest.mark.parametrize("name", ["cc_count_tokens_small.json", "cc_count_tokens_tools.json"])
def test_what_real_clients_want_counted_is_read(name: str) -> None:
    model, chat = anthropic.parse_count(sample_body(name))
    assert model == "stub-model"
    assert chat.messages[0].text() == "foo"
    assert len(chat.tools) == len(json.loads(sample_body(name))["tools"])


def test_a_string_and_a_list_of_one_text_are_the_same() -> None:
    blocks = [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]
    assert parse(system="Hi").chat == parse(system=blocks).chat
    as_string = parse(messages=[{"role": "user", "content": "Hi"}])
    assert as_string.chat == parse(messages=[{"role": "user", "content": blocks}]).chat


def test_system_text_comes_first_and_may_stand_in_between() -> None:
    messages = [*MINIMAL["messages"], {"role": "system", "content": "Later"}]
    roles = [(m.role, m.text()) for m in parse(system="First", messages=messages).chat.messages]
    assert roles == [("system", "First"), ("user", "Hello"), ("system", "Later")]


def test_tool_use_and_its_result_are_read() -> None:
    messages = [
        *MINIMAL["messages"],
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm", "signature": "abc"},
                {"type": "text", "text": "Looking."},
                {"type": "tool_use", "id": "t1", "name": "Read", "input": {"path": "a"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "words", "is_error": True},
                {"type": "text", "text": "Go on."},
            ],
        },
    ]
    assert parse(messages=messages).chat.messages[1:] == (
        Message(
            role="assistant",
            parts=(
                Reasoning(text="Hm", signature="abc"),
                Text(text="Looking."),
                ToolUse(id="t1", name="Read", arguments={"path": "a"}),
            ),
        ),
        Message(
            role="user",
            parts=(
                ToolResult(tool_use_id="t1", parts=(Text(text="words"),), is_error=True),
                Text(text="Go on."),
            ),
        ),
    )


@pytest.mark.parametrize("signature", ["", None, SIGNATURE])
def test_our_own_and_empty_signatures_are_none(signature: str | None) -> None:
    block = {"type": "thinking", "thinking": "Hm", "signature": signature}
    assert only_part([block], role="assistant") == Reasoning(text="Hm")


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (None, ()),
        ("", ()),
        ("words", (Text(text="words"),)),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], (Text(text="a"), Text(text="b"))),
        (
            [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}],
            (Image(source="data:image/png;base64,QUJD"),),
        ),
        (
            [{"type": "document", "title": "T", "source": {"type": "text", "data": "words"}}],
            (Text(text="T\nwords"),),
        ),
    ],
)
def test_results_of_every_shape_are_read(content: Any, parts: Any) -> None:
    block = {"type": "tool_result", "tool_use_id": "t1", "content": content}
    assert only_part([block]) == ToolResult(tool_use_id="t1", parts=parts)


def test_deferred_tools_stay_out_of_the_head_and_are_told_where_they_were_found() -> None:
    schema = {"type": "object", "properties": {}}
    tools = [
        {"name": "Read", "description": "Reads", "input_schema": schema},
        {"name": "Late", "description": "Found later", "input_schema": schema, "defer_loading": True},
    ]
    block = {
        "type": "tool_result",
        "tool_use_id": "t1",
        "content": [{"type": "tool_reference", "tool_name": "Late"}],
    }
    turn = parse(tools=tools, messages=[{"role": "user", "content": [block]}])
    assert [tool.name for tool in turn.chat.tools] == ["Read"]
    (result,) = turn.chat.messages[0].parts
    assert isinstance(result, ToolResult)
    (told,) = result.parts
    assert isinstance(told, Text)
    assert json.loads(told.text) == {"name": "Late", "description": "Found later", "parameters": schema}


def test_broken_arguments_in_the_history_never_brick_a_conversation() -> None:
    for sent, kept in [
        ("{oops", "{oops"),
        ([1], "[1]"),
        ({"a": 10**30}, f'{{"a":{10**30}}}'),
        (None, {}),
        ({"a": 1}, {"a": 1}),
    ]:
        block = {"type": "tool_use", "id": "t", "name": "Do", "input": sent}
        assert only_part([block], role="assistant").arguments == kept


def test_what_nothing_acts_on_is_reported_by_name() -> None:
    turn = parse(
        brand_new={"x": 1},
        thinking={"type": "adaptive", "display": "omitted"},
        output_config={"effort": "high"},
        context_management={"edits": []},
        metadata={"user_id": "{}"},
        tools=[{"type": "web_search_20250305", "name": "web_search", "max_uses": 8}],
        messages=[{"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}],
    )
    assert turn.unserved == ("tool:web_search_20250305", "block:redacted_thinking", "brand_new")
    assert turn.chat.tools == ()


def test_sampling_is_taken_over() -> None:
    turn = parse(temperature=0, top_p=0.5, top_k=7, stop_sequences=["END"], max_tokens=10_000_000)
    assert (turn.sampling.temperature, turn.sampling.top_p, turn.sampling.top_k) == (0.0, 0.5, 7)
    assert turn.stop == ("END",)
    assert turn.max_output_tokens == 10_000_000  # the backend clamps it
    assert parse(max_tokens=10**30).max_output_tokens == 2**31 - 1
    assert parse().sampling.temperature == 1.0


BLOCK = [{"role": "user", "content": [{"type": "hologram"}]}]


@pytest.mark.parametrize(
    ("fields", "field", "said"),
    [
        ({"model": None}, "model", "required"),
        ({"model": 5}, "model", "string, got 5"),
        ({"max_tokens": None}, "max_tokens", "required"),
        ({"max_tokens": 0}, "max_tokens", "at least 1, got 0"),
        ({"max_tokens": "many"}, "max_tokens", 'integer, got "many"'),
        ({"max_tokens": 1.5}, "max_tokens", "integer, got 1.5"),
        ({"max_tokens": True}, "max_tokens", "integer, got true"),
        ({"messages": None}, "messages", "required"),
        ({"messages": []}, "messages", "at least one message"),
        ({"messages": "Hello"}, "messages", 'array, got "Hello"'),
        ({"messages": ["Hello"]}, "messages.0", 'object, got "Hello"'),
        ({"messages": [{"content": "x"}]}, "messages.0.role", "required"),
        ({"messages": [{"role": "user"}]}, "messages.0.content", "required"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role", '"robot" is not one of user,'),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content", "string or array, got 5"),
        ({"messages": [{"role": "user", "content": ""}]}, "messages.0.content", "must not be empty"),
        ({"messages": [{"role": "user", "content": []}]}, "messages.0.content", "must not be empty"),
        ({"messages": BLOCK}, "messages.0.content.0.type", '"hologram" is not one of text,'),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages.0.content.0.text",
            "required",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "disk"}}]}]},
            "messages.0.content.0.source",
            "base64",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]},
            "messages.0.content.0.tool_use_id",
            "required",
        ),
        ({"temperature": 1.5}, "temperature", "between 0 and 1, got 1.5"),
        ({"temperature": -1}, "temperature", "between 0 and 1, got -1"),
        ({"temperature": "hot"}, "temperature", 'number, got "hot"'),
        ({"top_p": 2}, "top_p", "between 0 and 1, got 2"),
        ({"top_k": -2}, "top_k", "at least -1, got -2"),
        ({"stop_sequences": 5}, "stop_sequences", "array, got 5"),
        ({"stop_sequences": [""]}, "stop_sequences.0", "must not be empty"),
        ({"stream": "yes"}, "stream", 'boolean, got "yes"'),
        ({"system": 5}, "system", "string or array, got 5"),
        ({"system": [{"type": "image"}]}, "system.0.type", '"image" is not one of text'),
        ({"tools": {}}, "tools", "array, got {}"),
        ({"tools": [{"description": "x", "input_schema": {}}]}, "tools.0.name", "required"),
        ({"tools": [{"name": "x"}]}, "tools.0.input_schema", "required"),
    ],
)
def test_bad_input_is_named(fields: dict[str, Any], field: str, said: str) -> None:
    assert_refused(anthropic, MINIMAL | fields, field, said)


def test_a_result_in_an_assistants_message_is_refused() -> None:
    block = {"type": "tool_result", "tool_use_id": "t", "content": "x"}
    with pytest.raises(BadRequest, match=r"messages\.0\.content\.0\.type"):
        parse(messages=[{"role": "assistant", "content": [block]}])
