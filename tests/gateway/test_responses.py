"""Responses through a gateway on loopback, read by the SDK at its strictest."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from keepwarm.chat.events import ChatEvent, Failed, TextDelta
from keepwarm.chat.request import ChatRequest
from keepwarm.core.errors import ContextTooLong, EngineLost, Overloaded, to_wire
from tests.dialects.answers import finished, opening, said, with_everything
from tests.dialects.sse_reader import read_data
from tests.gateway.doors import KEY, LIMIT_S, Door, on_loopback
from tests.gateway.scripted_replica import ScriptedReplica

BODY: dict[str, Any] = {"model": "smol", "input": "Hello"}
TOOL: Any = {"type": "function", "name": "Read", "parameters": {"type": "object"}, "strict": False}


class City(BaseModel):
    """What a test wants to be told."""

    name: str
    people: int


def strict(door: Door) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"{door.url}/v1",
        api_key=KEY,
        max_retries=0,
        timeout=LIMIT_S,
        _strict_response_validation=True,
    )


async def test_the_sdk_reads_a_whole_response() -> None:
    replica = ScriptedReplica(lambda _: with_everything())
    async with on_loopback(replica) as door, strict(door) as client:
        answer = await client.responses.create(
            model="smol", input="Hello", instructions="Be brief.", tools=[TOOL], metadata={"a": "b"}
        )
    assert answer.output_text == "I will look."
    assert [item.type for item in answer.output] == ["reasoning", "message", "function_call", "function_call"]
    assert answer.status == "completed"
    assert answer.usage is not None
    assert answer.usage.input_tokens_details.cached_tokens == 80
    assert answer.instructions == "Be brief."
    assert answer.tools[0].to_dict() == TOOL


async def test_the_sdk_streams_every_event_as_its_own_type() -> None:
    replica = ScriptedReplica(lambda _: with_everything())
    async with on_loopback(replica) as door, strict(door) as client:
        stream = await client.responses.create(
            model="smol", input="Hello", tools=[TOOL], stream=True, reasoning={"summary": "auto"}
        )
        events = [event async for event in stream]
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"
    assert [event.sequence_number for event in events] == list(range(len(events)))


async def test_the_sdks_stream_helper_gathers_the_same_response() -> None:
    replica = ScriptedReplica(lambda _: with_everything())
    async with (
        on_loopback(replica) as door,
        strict(door) as client,
        client.responses.stream(model="smol", input="Hello", tools=[TOOL]) as stream,
    ):
        kinds = {event.type async for event in stream}
        final = await stream.get_final_response()
    assert "response.output_text.delta" in kinds
    assert "response.function_call_arguments.delta" in kinds
    assert final.output_text == "I will look."
    assert final.output[2].type == "function_call"
    assert final.output[2].arguments == '{"path":"a.txt"}'


async def test_the_sdk_parses_an_answer_of_a_given_form() -> None:
    asked: list[ChatRequest] = []

    def script(request: ChatRequest) -> list[ChatEvent]:
        asked.append(request)
        return said('{"name": "Ulm", ', '"people": 129000}')

    async with on_loopback(ScriptedReplica(script)) as door, strict(door) as client:
        answer = await client.responses.parse(model="smol", input="Hello", text_format=City)
        async with client.responses.stream(model="smol", input="Hello", text_format=City) as stream:
            streamed = await stream.get_final_response()
    assert answer.output_parsed == streamed.output_parsed == City(name="Ulm", people=129_000)
    assert asked[0].output_schema is not None
    assert asked[0].output_schema["required"] == ["name", "people"]


async def test_an_answer_cut_short_reaches_the_sdk_as_incomplete() -> None:
    events: list[ChatEvent] = [*opening(), TextDelta(text="Hel"), finished("max_tokens")]
    async with on_loopback(ScriptedReplica(lambda _: events)) as door, strict(door) as client:
        answer = await client.responses.create(model="smol", input="Hello", max_output_tokens=16)
        stream = await client.responses.create(model="smol", input="Hello", stream=True)
        last = [event async for event in stream][-1]
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert last.type == "response.incomplete"


async def test_errors_reach_the_sdk_as_its_own() -> None:
    too_long = Failed(error=to_wire(ContextTooLong(tokens=9000, limit=8192)))
    async with on_loopback(ScriptedReplica(lambda _: [too_long])) as door, strict(door) as client:
        with pytest.raises(openai.BadRequestError, match="prompt is too long") as caught:
            await client.responses.create(model="smol", input="Hello")
        with pytest.raises(openai.NotFoundError, match="gpt-9"):
            await client.responses.create(model="gpt-9", input="Hello")
        with pytest.raises(openai.BadRequestError, match="not kept here") as stored:
            await client.responses.create(model="smol", input="Hello", previous_response_id="resp_1")
    assert caught.value.code == "context_length_exceeded"
    assert stored.value.param == "previous_response_id"


async def test_a_full_queue_is_a_503_that_says_when_to_come_back() -> None:
    full = Failed(error=to_wire(Overloaded(message="the queue is full", retry_after_s=6.5)))
    async with on_loopback(ScriptedReplica(lambda _: [full])) as door, door.client() as client:
        response = await client.post("/v1/responses", json=BODY | {"stream": True})
    assert response.status_code == 503
    assert response.headers["retry-after"] == "7"


async def test_keep_alives_come_before_the_first_event_and_an_error_after_it_is_a_failed_response() -> None:
    replica = ScriptedReplica()
    async with (
        on_loopback(replica, header_wait_s=0.01, ping_interval_s=0.01) as door,
        door.client() as client,
        client.stream("POST", "/v1/responses", json=BODY | {"stream": True}) as response,
    ):
        teller = await replica.next_answer()
        lines = response.aiter_lines()
        assert (await asyncio.wait_for(anext(lines), LIMIT_S)).startswith(":")
        teller.say(*opening(), TextDelta(text="Hel"), Failed(error=to_wire(EngineLost("the rank died"))))
        raw = "\n".join([line async for line in lines])
    last = read_data(raw.encode() + b"\n\n")[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["error"] == {"code": "server_error", "message": "the rank died"}


async def test_the_wrong_method_is_told_which_one_would_do() -> None:
    async with on_loopback(ScriptedReplica()) as door, door.client() as client:
        response = await client.get("/v1/responses")
    assert response.status_code == 404
    assert "POST /v1/responses is" in json.loads(response.text)["error"]["message"]
