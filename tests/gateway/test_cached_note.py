"""Clients hear which tiers their prompt was found in: by a header, or by a comment in the stream."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from keepwarm.chat.events import Accepted, Admitted, ChatEvent, Failed, Finished, TextDelta, Timings, Usage
from keepwarm.core.errors import EngineLost, to_wire
from tests.dialects.sse_reader import read_data, read_named
from tests.gateway.doors import LIMIT_S, on_loopback, without_socket
from tests.gateway.scripted_replica import ScriptedAnswer, ScriptedReplica

HEADER = "x-keepwarm-cached-tokens"
NOTE = "l0=30, l1=40, disk=10"
COMMENT = f": {HEADER}: {NOTE}\n\n"
MESSAGES, CHAT, RESPONSES = "/v1/messages", "/v1/chat/completions", "/v1/responses"
BODY: dict[str, Any] = {"model": "smol", "max_tokens": 16, "messages": [{"role": "user", "content": "Hello"}]}
BODIES = {MESSAGES: BODY, CHAT: BODY, RESPONSES: {"model": "smol", "input": "Hello"}}
DIALECTS = pytest.mark.parametrize("path", [MESSAGES, CHAT, RESPONSES])

ADMITTED = Admitted(cached_tokens=80, host_tokens=50, disk_tokens=10)
ANSWER: list[ChatEvent] = [
    Accepted(prompt_tokens=100),
    ADMITTED,
    TextDelta(text="Hel"),
    Finished(
        reason="end",
        usage=Usage(
            prompt_tokens=100,
            cached_tokens=80,
            host_cached_tokens=50,
            disk_cached_tokens=10,
            output_tokens=1,
        ),
        timings=Timings(admitted_s=0.1, first_token_s=0.2, total_s=0.3),
    ),
]


@DIALECTS
async def test_a_whole_answer_says_it_in_a_header(path: str) -> None:
    async with without_socket(ScriptedReplica(lambda _: ANSWER)) as client:
        response = await client.post(path, json=BODIES[path])
    assert response.status_code == 200
    assert response.headers[HEADER] == NOTE


@DIALECTS
async def test_a_stream_says_it_in_a_comment_before_its_end(path: str) -> None:
    replica = ScriptedReplica()
    async with on_loopback(replica, header_wait_s=LIMIT_S, ping_interval_s=LIMIT_S) as door:
        accept = asyncio.create_task(_accept(replica))
        async with (
            door.client() as client,
            client.stream("POST", path, json=BODIES[path] | {"stream": True}) as response,
        ):
            (await accept).say(*ANSWER[1:])
            raw = (await response.aread()).decode()
    assert HEADER not in response.headers  # they went out before the turn was admitted
    assert raw.count(COMMENT) == 1
    assert raw.index("Hel") < raw.index(COMMENT)
    assert any(
        end in raw.split(COMMENT)[1] for end in ("message_stop", "finish_reason", "response.completed")
    )
    without = raw.replace(COMMENT, "").encode()
    if path == CHAT:
        assert read_data(raw.encode()) == read_data(without)
    else:
        assert read_named(raw.encode()) == read_named(without)


@DIALECTS
async def test_a_stream_says_it_in_its_headers_too_where_it_is_known_that_early(path: str) -> None:
    async with without_socket(ScriptedReplica(lambda _: ANSWER)) as client:
        response = await client.post(path, json=BODIES[path] | {"stream": True})
    assert response.headers[HEADER] == NOTE
    assert response.text.count(COMMENT) == 1


@DIALECTS
async def test_a_stream_that_fails_says_it_before_the_error(path: str) -> None:
    failing = [*ANSWER[:3], Failed(error=to_wire(EngineLost("the rank died")))]
    replica = ScriptedReplica()
    async with on_loopback(replica) as door:
        accept = asyncio.create_task(_accept(replica))
        async with (
            door.client() as client,
            client.stream("POST", path, json=BODIES[path] | {"stream": True}) as response,
        ):
            (await accept).say(*failing[1:])
            raw = (await response.aread()).decode()
    before, after = raw.split(COMMENT)
    assert "the rank died" not in before
    assert "the rank died" in after


@DIALECTS
@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_not_known_is_not_said(path: str, stream: bool) -> None:
    failed: list[ChatEvent] = [
        Accepted(prompt_tokens=100),
        Failed(error=to_wire(EngineLost("the rank died"))),
    ]
    replica = ScriptedReplica(lambda _: failed)
    async with without_socket(replica) as client:
        response = await client.post(path, json=BODIES[path] | {"stream": stream})
    assert HEADER not in response.headers
    assert HEADER not in response.text


async def test_the_log_line_says_it_by_tier(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "keepwarm.gateway.requests")
    async with without_socket(ScriptedReplica(lambda _: ANSWER)) as client:
        await client.post(MESSAGES, json=BODY)
    (record,) = [record for record in caplog.records if record.name == "keepwarm.gateway.requests"]
    fields = record.__dict__["fields"]
    tiers = ("", "_l0", "_l1", "_disk")
    assert [fields[f"cached_tokens{tier}"] for tier in tiers] == [80, 30, 40, 10]
    assert (
        "cached_tokens=80 cached_tokens_l0=30 cached_tokens_l1=40 cached_tokens_disk=10"
        in record.getMessage()
    )


async def _accept(replica: ScriptedReplica) -> ScriptedAnswer:
    teller = await replica.next_answer()
    teller.say(ANSWER[0])
    return teller
