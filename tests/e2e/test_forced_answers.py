"""The embedded model at temperature 1: what is forced always parses, from a request to its events.

The front and the rank's loop in this process, so that many answers are written together.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from keepwarm.backend.in_process_rank import InProcessRank
from keepwarm.backend.model_words import load_model_words
from keepwarm.backend.native import CacheNaming, NativeBackend
from keepwarm.backend.rank_builder import build_rank
from keepwarm.backend.settings import BackendSettings
from keepwarm.chat.events import ChatEvent, Failed, Finished, TextDelta, ToolCallArguments, ToolCallStart
from keepwarm.chat.messages import Chat, Message, Text, ToolSpec
from keepwarm.chat.request import ChatRequest, ToolChoice
from keepwarm.core.ids import RequestId, TenantId
from keepwarm.core.sampling import Sampling
from tests.engine.conftest import embedded_model_path as embedded_model_path  # the fixture

pytest.importorskip("torch")
pytest.importorskip("xgrammar")

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

PATIENCE_S = 240.0
PROMPTS = (
    "What is the weather in Rome tomorrow?",
    "Please read the file notes.txt for me.",
    "Tell me a joke about cats.",
    "¿Qué tiempo hace en Zürich?",
)
CITIES = ["Rome", "Zürich", "東京"]
WEATHER = ToolSpec(
    name="get_weather",
    description="The weather at a place.",
    parameters={
        "type": "object",
        "properties": {
            "city": {"enum": CITIES},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
            "detail": {"$ref": "#/$defs/detail"},
        },
        "required": ["city", "days"],
        "$defs": {
            "detail": {"type": "object", "properties": {"wind": {"type": "boolean"}}, "required": ["wind"]}
        },
    },
)
READ = ToolSpec(
    name="read_file",
    description="Reads a file.",
    parameters={
        "type": "object",
        "properties": {"path": {"type": "string", "maxLength": 24}},
        "required": ["path"],
    },
)
REVIEW = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 24},
        "stars": {"type": "integer", "minimum": 1, "maximum": 5},
        "tags": {"type": "array", "items": {"enum": ["gut", "schön", "naja"]}, "maxItems": 3},
        "rows": {
            "type": "array",
            "items": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2},
            "maxItems": 2,
        },
    },
    "required": ["title", "stars", "tags", "rows"],
    "additionalProperties": False,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend(embedded_model_path: str) -> AsyncIterator[NativeBackend]:
    settings = BackendSettings(
        model_path=embedded_model_path,
        model_name="embedded",
        socket_path="/unused",
        data_dir="/unused",
        max_num_seqs=16,
        device_cache_gb=0.5,
        num_threads=1,  # a test beside others; threads that wait for each other by spinning starve them
    )
    engine, ready = build_rank(settings, hash_key=bytes(32))
    made = NativeBackend(
        settings,
        rank=InProcessRank(engine, ready),
        load_words=lambda: load_model_words(embedded_model_path),
        naming=CacheNaming(key=bytes(32), model_identity=b"embedded"),
    )
    await made.setup()
    yield made
    await made.close()


def ask(number: int, **options: Any) -> ChatRequest:
    values: dict[str, Any] = {
        "sampling": Sampling(temperature=1.0, seed=number),
        "max_output_tokens": 200,
        "tools": (WEATHER, READ),
    } | options
    chat = Chat(
        messages=(Message(role="user", parts=(Text(text=PROMPTS[number % len(PROMPTS)]),)),),
        tools=values.pop("tools"),
    )
    name = f"turn {number} {sorted(options)}"
    return ChatRequest(request_id=RequestId(name), tenant=TenantId("t"), chat=chat, **values)


async def answers(backend: NativeBackend, requests: list[ChatRequest]) -> list[list[ChatEvent]]:
    """All at once."""

    async def one(request: ChatRequest) -> list[ChatEvent]:
        return [event async for event in backend.chat(request)]

    async with asyncio.timeout(PATIENCE_S):
        return await asyncio.gather(*map(one, requests))


def calls_of(events: list[ChatEvent]) -> list[tuple[str, Any]]:
    calls: list[tuple[str, str]] = []
    for event in events:
        if isinstance(event, ToolCallStart):
            calls.append((event.name, ""))
        elif isinstance(event, ToolCallArguments):
            calls[-1] = (calls[-1][0], calls[-1][1] + event.json)
    return [(name, json.loads(arguments)) for name, arguments in calls]


def text_of(events: list[ChatEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def end_of(events: list[ChatEvent]) -> Finished:
    end = events[-1]
    assert isinstance(end, Finished), end
    return end


def check_arguments(name: str, arguments: Any) -> None:
    if name == "read_file":
        assert list(arguments) == ["path"]
        assert len(arguments["path"]) <= 24
        return
    assert name == "get_weather"
    assert arguments["city"] in CITIES
    assert arguments["days"] in range(1, 10)
    assert isinstance(arguments.get("detail", {"wind": True})["wind"], bool)


async def test_any_tool_and_a_named_tool_are_always_called(backend: NativeBackend) -> None:
    any_one = ToolChoice(mode="any", parallel=False)
    named = ToolChoice(mode="named", name="get_weather")
    choices = [any_one] * 4 + [named] * 2
    requests = [ask(number, tool_choice=choice) for number, choice in enumerate(choices)]
    for choice, events in zip(choices, await answers(backend, requests), strict=True):
        assert end_of(events).reason == "tool_use"
        assert text_of(events) == ""
        [(name, arguments)] = calls_of(events)
        assert choice is any_one or name == "get_weather"
        check_arguments(name, arguments)


async def test_an_answer_by_a_schema_always_satisfies_it(backend: NativeBackend) -> None:
    forced = [ask(number, tools=(), output_schema=REVIEW) for number in range(4)]
    for events in await answers(backend, forced):
        assert end_of(events).reason == "end"
        review = json.loads(text_of(events))
        assert list(review) == ["title", "stars", "tags", "rows"]
        assert len(review["title"]) <= 24
        assert review["stars"] in range(1, 6)
        assert set(review["tags"]) <= {"gut", "schön", "naja"}
        assert all(1 <= len(row) <= 2 for row in review["rows"])


async def test_free_answers_are_the_same_beside_forced_ones(backend: NativeBackend) -> None:
    def free(name: str) -> ChatRequest:
        request = ask(1, tools=(), max_output_tokens=12, use_cache=False)
        return msgspec.structs.replace(request, request_id=RequestId(name))

    [alone] = await answers(backend, [free("alone")])
    forced = [ask(2, tool_choice=ToolChoice(mode="any", parallel=False))]
    together = await answers(backend, [free("together"), *forced])
    assert text_of(together[0]) == text_of(alone)


async def test_an_empty_schema_is_an_object_and_a_cut_one_may_be_incomplete(backend: NativeBackend) -> None:
    requests = [ask(number, tools=(), output_schema={}, max_output_tokens=32) for number in range(2)]
    for events in await answers(backend, requests):
        text = text_of(events)
        assert text.startswith("{")
        if end_of(events).reason == "end":
            assert isinstance(json.loads(text), dict)
        else:
            assert end_of(events).reason == "max_tokens"


async def test_a_pattern_that_does_not_parse_is_refused_before_the_answer(backend: NativeBackend) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(["}}}
    [events] = await answers(backend, [ask(0, tools=(), output_schema=schema)])
    [failed] = [event for event in events if isinstance(event, Failed)]
    assert events[-1] is failed
    assert text_of(events) == ""
    assert failed.error.code == "bad_request"
    message = str(failed.error.fields["message"])
    assert message.startswith("response_format: ")
    assert "Unclosed '['" in message


async def test_forced_answers_are_counted(backend: NativeBackend) -> None:
    before = counted(backend)
    await answers(backend, [ask(3, tool_choice=ToolChoice(mode="named", name="get_weather"))])
    assert counted(backend) == before + 1


def counted(backend: NativeBackend) -> float:
    [line] = [
        line
        for line in backend.metrics_text().splitlines()
        if line.startswith("keepwarm_constrained_turns_total{")
    ]
    return float(line.split()[1])
