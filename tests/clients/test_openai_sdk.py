"""The openai SDK, refusing any answer that its types do not describe, against the whole stack."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import openai
import pytest

from tests.clients.scripted_server import ScriptedServer, missed
from tests.clients.test_anthropic_sdk import OPTIONS, SCRIPT, WEATHER

__all__ = ["OPTIONS", "SCRIPT"]

MODEL = "claude-sonnet-5"
CITIES = {"role": "user", "content": "Tell me the weather in two cities."}
PARAMETERS = WEATHER["input_schema"]
CHAT_TOOL = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
RESPONSES_TOOL = {"type": "function", "name": "weather", "parameters": PARAMETERS, "strict": False}
CALLS = [{"city": "Zürich", "days": 2}, {"city": "Oslo", "days": 1}]


def client(server: ScriptedServer, **options: Any) -> openai.OpenAI:
    settings = {
        "base_url": f"{server.served.url}/v1",
        "api_key": server.served.key,
        "max_retries": 0,
        "_strict_response_validation": True,
    }
    return openai.OpenAI(**{**settings, **options})


def chat(**changes: Any) -> Any:
    return {"model": MODEL, "messages": [CITIES], "tools": [CHAT_TOOL], **changes}


def response(**changes: Any) -> Any:
    return {"model": MODEL, "input": [CITIES], "tools": [RESPONSES_TOOL], "store": False, **changes}


def test_chat_completions_call_tools_and_take_their_results(server: ScriptedServer) -> None:
    with client(server) as sdk:
        first = sdk.chat.completions.create(**chat()).choices[0]
        calls = first.message.tool_calls or []
        assert [json.loads(call.function.arguments) for call in calls] == CALLS
        assert (first.message.content, first.finish_reason) == ("I ask twice.", "tool_calls")
        results = [
            {"role": "tool", "tool_call_id": call.id, "content": content}
            for call, content in zip(calls, ("rain", "snow"), strict=True)
        ]
        history = [CITIES, first.message.model_dump(exclude_none=True), *results]
        second = sdk.chat.completions.create(**chat(messages=history))
    assert second.choices[0].message.content == "Rain there, snow here."
    assert second.usage
    assert second.usage.prompt_tokens_details
    assert second.usage.prompt_tokens_details.cached_tokens
    assert missed(server.turns(2)) == []


def test_a_streamed_chat_completion_is_the_whole_one(server: ScriptedServer) -> None:
    with client(server) as sdk:
        whole = sdk.chat.completions.create(**chat())
        with sdk.chat.completions.stream(**chat(), stream_options={"include_usage": True}) as stream:
            kinds = [event.type for event in stream]
            streamed = stream.get_final_completion()
    assert kinds.count("tool_calls.function.arguments.delta") > 4  # as they come
    message, expected = streamed.choices[0].message, whole.choices[0].message
    assert message.content == expected.content
    assert [json.loads(call.function.arguments) for call in message.tool_calls or []] == CALLS
    assert streamed.choices[0].finish_reason == "tool_calls"
    assert streamed.usage
    assert whole.usage
    assert streamed.usage.completion_tokens == whole.usage.completion_tokens


def test_responses_call_tools_and_take_their_results(server: ScriptedServer) -> None:
    with client(server) as sdk:
        first = sdk.responses.create(**response())
        calls = [item for item in first.output if item.type == "function_call"]
        assert [json.loads(call.arguments) for call in calls] == CALLS
        results = [
            {"type": "function_call_output", "call_id": call.call_id, "output": output}
            for call, output in zip(calls, ("rain", "snow"), strict=True)
        ]
        items = [item.model_dump(exclude_none=True) for item in first.output]
        second = sdk.responses.create(**response(input=[CITIES, *items, *results]))
    assert second.output_text == "Rain there, snow here."
    assert second.usage
    assert second.usage.input_tokens_details.cached_tokens
    assert missed(server.turns(2)) == []


def test_a_streamed_response_is_the_whole_one(server: ScriptedServer) -> None:
    with client(server) as sdk:
        whole = sdk.responses.create(**response())
        with sdk.responses.stream(**response()) as stream:
            kinds = [event.type for event in stream]
            streamed = stream.get_final_response()
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert kinds.count("response.function_call_arguments.delta") > 4  # as they come
    assert [item.type for item in streamed.output] == [item.type for item in whole.output]
    assert streamed.output_text == whole.output_text
    calls = [item.arguments for item in streamed.output if item.type == "function_call"]
    assert [json.loads(arguments) for arguments in calls] == CALLS


def test_the_served_model_is_listed(server: ScriptedServer) -> None:
    with client(server) as sdk:
        assert server.served.model in [model.id for model in sdk.models.list()]


def test_errors_are_those_the_sdk_knows(server: ScriptedServer) -> None:
    long = {"role": "user", "content": "word " * 9000}
    huge = {"role": "user", "content": "word " * 30_000}
    with client(server, api_key="ik_live_wrong") as stranger, pytest.raises(openai.AuthenticationError):
        stranger.chat.completions.create(**chat())
    with client(server) as sdk:
        with pytest.raises(openai.NotFoundError):
            sdk.responses.create(**response(model="nobody"))
        refused = [
            _refused(partial(sdk.chat.completions.create, **chat(messages=[long], stream=stream)))
            for stream in (False, True)
        ]
        refused.append(_refused(partial(sdk.responses.create, **response(input=[long]))))
        assert {error.code for error in refused} == {"context_length_exceeded"}
        with pytest.raises(openai.APIStatusError) as refused_size:
            sdk.chat.completions.create(**chat(messages=[huge]))
    assert refused_size.value.status_code == 413
    assert [request.status for request in server.requests(6)] == [401, 404, 400, 400, 400, 413]


def _refused(ask: Callable[[], object]) -> openai.BadRequestError:
    with pytest.raises(openai.BadRequestError, match="prompt is too long") as caught:
        ask()
    return caught.value
