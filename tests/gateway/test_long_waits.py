"""Signs of life during a long read: no client's limit on silence is reached, and nothing is garbled."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from keepwarm.chat.events import ReasoningDelta, TextDelta, ToolCallArguments, ToolCallEnd, ToolCallStart
from keepwarm.gateway.exchange import Pulse
from keepwarm.gateway.settings import GatewaySettings
from tests.dialects.answers import finished, opening
from tests.gateway.doors import Door, on_loopback
from tests.gateway.scripted_replica import ScriptedAnswer, ScriptedReplica

MESSAGES: Any = [{"role": "user", "content": "Hello"}]
SHORTEST_LIMIT_S = 300.0
"""Codex ends a stream without a true event for so long; Claude Code 2.1.332 waits 600 s (measured).
Pings and comments do not count."""


class SaidSigns:
    """A stream that says which sign it was asked for."""

    def ping(self) -> bytes:
        return b"ping"

    def progress(self) -> bytes:
        return b"progress"

    def feed(self, event: object) -> bytes:
        raise AssertionError(event)

    def tells(self, error: object) -> bool:
        raise AssertionError(error)

    def fail(self, error: object) -> bytes:
        raise AssertionError(error)


def signs_of_silence(settings: GatewaySettings, *, until_s: float) -> list[tuple[float, bytes]]:
    """(instant, sign) of a stream on which nothing else happens."""
    pulse, now, signs = Pulse(settings, 0.0), 0.0, []
    while now < until_s:
        sign = pulse.sign(SaidSigns(), now)
        signs.append((now, sign))
        pulse.sent(now, is_true=False)
        now += pulse.wait_s(now)
    return signs


def test_a_silent_stream_gets_pings_and_true_events_in_time_for_every_client() -> None:
    signs = signs_of_silence(GatewaySettings(model_name="smol"), until_s=3600.0)

    instants = [at for at, _ in signs]
    assert max(b - a for a, b in itertools.pairwise(instants)) <= 30.0
    progress = [0.0, *(at for at, sign in signs if sign == b"progress")]
    assert max(b - a for a, b in itertools.pairwise(progress)) <= SHORTEST_LIMIT_S / 2
    assert progress[-1] > 3600.0 - SHORTEST_LIMIT_S / 2


def test_an_event_of_the_answer_puts_the_next_sign_off() -> None:
    pulse = Pulse(GatewaySettings(model_name="smol", ping_interval_s=10.0, progress_interval_s=120.0), 0.0)

    pulse.sent(115.0, is_true=True)

    assert pulse.wait_s(115.0) == 10.0
    assert pulse.sign(SaidSigns(), 125.0) == b"ping"
    assert pulse.sign(SaidSigns(), 235.0) == b"progress"
    assert pulse.sign(SaidSigns(), 245.0) == b"ping"


PARTS: list[Any] = [
    *opening(),
    ReasoningDelta(text="Let me "),
    ReasoningDelta(text="think."),
    TextDelta(text="I will "),
    TextDelta(text="look."),
    ToolCallStart(id="call_1", name="Read"),
    ToolCallArguments(json='{"path":'),
    ToolCallArguments(json='"a.txt"}'),
    ToolCallEnd(),
    finished("tool_use"),
]


async def tell_slowly(teller: ScriptedAnswer) -> None:
    """Each event alone, after the stream has been silent for a while."""
    for part in PARTS:
        for _ in range(3):
            await teller.waited()
        teller.say(part)


async def told(door: Door, replica: ScriptedReplica, ask: Callable[[], Any]) -> Any:
    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(ask())
        await tell_slowly(await replica.next_answer())
    return asking.result()


SILENCE: dict[str, Any] = {"header_wait_s": 0.001, "ping_interval_s": 0.001}
SIGNS = pytest.mark.parametrize("progress_interval_s", [0.0, 0.002, 100.0])


@SIGNS
async def test_the_anthropic_sdk_reads_through_them(progress_interval_s: float) -> None:
    replica = ScriptedReplica()
    async with (
        on_loopback(replica, **SILENCE, progress_interval_s=progress_interval_s) as door,
        door.anthropic() as client,
    ):

        async def ask() -> Any:
            async with client.messages.stream(model="smol", max_tokens=16, messages=MESSAGES) as stream:
                return await stream.get_final_message()

        message = await told(door, replica, ask)
    blocks = [block.to_dict() for block in message.content]
    assert [block["type"] for block in blocks] == ["thinking", "text", "tool_use"]
    assert blocks[0]["thinking"] == "Let me think."
    assert blocks[1]["text"] == "I will look."
    assert blocks[2]["input"] == {"path": "a.txt"}
    assert message.stop_reason == "tool_use"
    assert (message.usage.input_tokens, message.usage.cache_read_input_tokens) == (20, 80)
    assert message.usage.output_tokens == 5


@SIGNS
async def test_the_openai_sdk_reads_through_them(progress_interval_s: float) -> None:
    replica = ScriptedReplica()
    async with (
        on_loopback(replica, **SILENCE, progress_interval_s=progress_interval_s) as door,
        door.openai() as client,
    ):

        async def ask() -> Any:
            async with client.chat.completions.stream(
                model="smol", messages=MESSAGES, stream_options={"include_usage": True}
            ) as stream:
                return await stream.get_final_completion()

        completion = await told(door, replica, ask)
    message = completion.choices[0].message
    assert message.content == "I will look."
    assert message.tool_calls[0].function.arguments == '{"path":"a.txt"}'
    assert completion.choices[0].finish_reason == "tool_calls"
    assert completion.usage.total_tokens == 105


@SIGNS
async def test_the_openai_sdk_reads_a_response_through_them(progress_interval_s: float) -> None:
    replica = ScriptedReplica()
    async with (
        on_loopback(replica, **SILENCE, progress_interval_s=progress_interval_s) as door,
        door.openai() as client,
    ):

        async def ask() -> Any:
            async with client.responses.stream(model="smol", input="Hello") as stream:
                return await stream.get_final_response()

        response = await told(door, replica, ask)
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]
    assert response.output_text == "I will look."
    assert response.output[2].arguments == '{"path":"a.txt"}'
    assert response.status == "completed"
    assert response.usage.total_tokens == 105
