"""Messages and Chat Completions read by the SDKs at their strictest: every field of its own type."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest

from keepwarm.chat.request import ChatRequest
from tests.dialects.answers import said, with_everything
from tests.gateway.doors import KEY, LIMIT_S, Door, on_loopback
from tests.gateway.scripted_replica import ScriptedReplica

MESSAGES: Any = [{"role": "user", "content": "Hello"}]


def strict_anthropic(door: Door) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(
        base_url=door.url, api_key=KEY, max_retries=0, timeout=LIMIT_S, _strict_response_validation=True
    )


def strict_openai(door: Door) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"{door.url}/v1",
        api_key=KEY,
        max_retries=0,
        timeout=LIMIT_S,
        _strict_response_validation=True,
    )


@pytest.mark.parametrize("is_beta", [False, True])
async def test_messages_pass_the_sdks_strictest_reading(is_beta: bool) -> None:
    replica = ScriptedReplica(lambda _: with_everything())
    async with on_loopback(replica) as door, strict_anthropic(door) as client:
        messages: Any = client.beta.messages if is_beta else client.messages
        whole = await messages.create(model="smol", max_tokens=16, messages=MESSAGES)
        async with messages.stream(model="smol", max_tokens=16, messages=MESSAGES) as stream:
            gathered = await stream.get_final_message()
    for message in (whole, gathered):
        kinds = [block.type for block in message.content]
        assert kinds == ["thinking", "text", "tool_use", "tool_use"]
        assert message.stop_reason == "tool_use"


async def test_what_the_newest_options_of_messages_ask_for_reaches_the_replica() -> None:
    asked: list[ChatRequest] = []

    def script(request: ChatRequest) -> Any:
        asked.append(request)
        return said("{}")

    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    options: Any = {
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high", "format": {"type": "json_schema", "schema": schema}},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "tools": [{"name": "Read", "input_schema": schema}],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        "metadata": {"user_id": '{"session_id": "s-1"}'},
    }
    async with on_loopback(ScriptedReplica(script)) as door, strict_anthropic(door) as client:
        await client.beta.messages.create(model="smol", max_tokens=16, messages=MESSAGES, **options)
    (request,) = asked
    assert request.reasoning is True
    assert request.output_schema == schema
    assert (request.tool_choice.mode, request.tool_choice.parallel) == ("any", False)
    assert request.session == "s-1"


async def test_chat_completions_pass_the_sdks_strictest_reading() -> None:
    replica = ScriptedReplica(lambda _: with_everything())
    async with on_loopback(replica) as door, strict_openai(door) as client:
        whole: Any = await client.chat.completions.create(model="smol", messages=MESSAGES)
        async with client.chat.completions.stream(
            model="smol", messages=MESSAGES, stream_options={"include_usage": True}
        ) as stream:
            gathered: Any = await stream.get_final_completion()
    for completion in (whole, gathered):
        assert completion.choices[0].message.content == "I will look."
        assert len(completion.choices[0].message.tool_calls) == 2
        assert completion.usage.prompt_tokens_details.cached_tokens == 80
        assert completion.usage.completion_tokens_details.reasoning_tokens == 0


async def test_an_older_function_call_passes_it_too() -> None:
    replica = ScriptedReplica(lambda _: with_everything())
    functions: Any = [{"name": "Read", "parameters": {"type": "object"}}]
    async with on_loopback(replica) as door, strict_openai(door) as client:
        answer = await client.chat.completions.create(model="smol", messages=MESSAGES, functions=functions)
        chunks = [
            chunk
            async for chunk in await client.chat.completions.create(
                model="smol", messages=MESSAGES, functions=functions, stream=True
            )
        ]
    assert answer.choices[0].finish_reason == chunks[-1].choices[0].finish_reason == "function_call"
    assert answer.choices[0].message.function_call is not None
    assert answer.choices[0].message.function_call.arguments == '{"path":"a.txt"}'
    told = [chunk.choices[0].delta.function_call for chunk in chunks]
    joined = "".join(call.arguments or "" for call in told if call)
    assert joined == '{"path":"a.txt"}'  # the first of two: the older form has room for one
