"""The anthropic SDK, refusing any answer that its types do not describe, against the whole stack."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest
from anthropic.types import MessageParam, ToolUseBlock

from tests.clients.scripted_server import ScriptedServer, missed

OPTIONS = ("--max-model-len", "8192", "--max-body-mb", "0.1")
SCRIPT = r'''
[[answers]]
when = "weather in two cities"
say = """I ask twice.
<tool_call>
{"name": "weather", "arguments": {"city": "Zürich", "days": 2}}
</tool_call>
<tool_call>
{"name": "weather", "arguments": {"city": "Oslo", "days": 1}}
</tool_call>"""

[[answers]]
when = "rain(?s:.*)snow"
say = "Rain there, snow here."

[[answers]]
when = "count to five"
say = "one two three four five"
'''
CITIES: MessageParam = {"role": "user", "content": "Tell me the weather in two cities."}
WEATHER: Any = {
    "name": "weather",
    "description": "The weather of the next days",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
}


def client(server: ScriptedServer, **options: Any) -> anthropic.Anthropic:
    settings = {
        "base_url": server.served.url,
        "api_key": server.served.key,
        "max_retries": 0,
        "_strict_response_validation": True,
    }
    return anthropic.Anthropic(**{**settings, **options})


def results(message: anthropic.types.Message) -> MessageParam:
    """What the tools said to the calls of a message."""
    calls = [block for block in message.content if isinstance(block, ToolUseBlock)]
    said = ("rain", [{"type": "text", "text": "snow"}])
    blocks: Any = [
        {"type": "tool_result", "tool_use_id": call.id, "content": content}
        for call, content in zip(calls, said, strict=True)
    ]
    return {"role": "user", "content": blocks}


def test_tools_are_called_and_answered_whole(server: ScriptedServer) -> None:
    with client(server) as sdk:
        first = sdk.messages.create(
            model="claude-sonnet-5", max_tokens=500, messages=[CITIES], tools=[WEATHER]
        )
        assert [block.type for block in first.content] == ["text", "tool_use", "tool_use"]
        calls = [block for block in first.content if isinstance(block, ToolUseBlock)]
        assert [call.input for call in calls] == [
            {"city": "Zürich", "days": 2},
            {"city": "Oslo", "days": 1},
        ]
        assert (first.stop_reason, first.model) == ("tool_use", "claude-sonnet-5")
        history: list[MessageParam] = [CITIES, {"role": "assistant", "content": first.content}]
        second = sdk.messages.create(
            model="claude-sonnet-5",
            max_tokens=500,
            messages=[*history, results(first)],
            tools=[WEATHER],
        )
    assert second.stop_reason == "end_turn"
    assert second.usage.cache_read_input_tokens
    assert missed(server.turns(2)) == []


def test_a_streamed_answer_is_the_whole_one(server: ScriptedServer) -> None:
    with client(server) as sdk:
        asked: Any = {"model": "claude-sonnet-5", "max_tokens": 500, "messages": [CITIES], "tools": [WEATHER]}
        whole = sdk.messages.create(**asked)
        with sdk.messages.stream(**asked) as stream:
            pieces = [event.partial_json for event in stream if event.type == "input_json"]
            streamed = stream.get_final_message()
    assert len(pieces) > 4  # as they come
    shown = [block.model_dump(exclude={"id"}) for block in streamed.content]
    assert shown == [block.model_dump(exclude={"id"}) for block in whole.content]
    assert streamed.stop_reason == whole.stop_reason
    assert streamed.usage.output_tokens == whole.usage.output_tokens


def test_a_limit_of_tokens_and_a_stop_string_end_an_answer(server: ScriptedServer) -> None:
    counting: MessageParam = {"role": "user", "content": "count to five"}
    with client(server) as sdk:
        cut = sdk.messages.create(model="haiku", max_tokens=2, messages=[counting])
        stopped = sdk.messages.create(
            model="haiku", max_tokens=50, messages=[counting], stop_sequences=["four"]
        )
    assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 2)
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "four")
    assert stopped.content[0].type == "text"
    assert stopped.content[0].text == "one two three "


def test_tokens_are_counted_as_they_are_read(server: ScriptedServer) -> None:
    with client(server) as sdk:
        counted = sdk.messages.count_tokens(model="claude-sonnet-5", messages=[CITIES], tools=[WEATHER])
        answer = sdk.messages.create(
            model="claude-sonnet-5", max_tokens=1, messages=[CITIES], tools=[WEATHER]
        )
    usage = answer.usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_the_served_model_is_listed(server: ScriptedServer) -> None:
    with client(server) as sdk:
        assert server.served.model in [model.id for model in sdk.models.list()]


def test_errors_are_those_the_sdk_knows(server: ScriptedServer) -> None:
    asked: Any = {"model": "claude-sonnet-5", "max_tokens": 5, "messages": [CITIES]}
    long: MessageParam = {"role": "user", "content": "word " * 9000}
    with client(server, api_key="ik_live_wrong") as stranger, pytest.raises(anthropic.AuthenticationError):
        stranger.messages.create(**asked)
    with client(server) as sdk:
        with pytest.raises(anthropic.NotFoundError):
            sdk.messages.create(**{**asked, "model": "nobody"})
        with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > \d+ maximum"):
            sdk.messages.create(**{**asked, "messages": [long]})
        with pytest.raises(anthropic.BadRequestError), sdk.messages.stream(**{**asked, "messages": [long]}):
            pass
        with pytest.raises(anthropic.RequestTooLargeError, match="Request exceeds the maximum size"):
            sdk.messages.create(**{**asked, "messages": [{"role": "user", "content": "word " * 30_000}]})
    assert [request.status for request in server.requests(5)] == [401, 404, 400, 400, 413]
