"""Turns through a gateway on loopback: the real SDKs, streams and their pings, clients that leave."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from typing import Any

import anthropic
import httpx
import openai
import pytest

from keepwarm.chat.events import Accepted, ChatEvent, Failed, TextDelta
from keepwarm.chat.request import ChatRequest
from keepwarm.core.errors import ContextTooLong, EngineLost, Overloaded, to_wire
from tests.dialects.answers import finished, opening, said, with_everything
from tests.dialects.sse_reader import read_named
from tests.gateway.doors import KEY, LIMIT_S, Door, on_loopback
from tests.gateway.scripted_replica import ScriptedAnswer, ScriptedReplica

MESSAGES: Any = [{"role": "user", "content": "Hello"}]
BODY: dict[str, Any] = {"model": "smol", "max_tokens": 16, "messages": MESSAGES}
STREAM = BODY | {"stream": True}
DIALECTS = pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions"])


def script(_: ChatRequest) -> list[ChatEvent]:
    return said("Hel", "lo")


async def until_closed(teller: ScriptedAnswer) -> None:
    async with asyncio.timeout(LIMIT_S):
        await teller.closed.wait()


# The real SDKs


async def test_the_anthropic_sdk_reads_a_whole_answer() -> None:
    async with on_loopback(ScriptedReplica(script)) as door, door.anthropic() as client:
        answer = await client.messages.create(model="smol", max_tokens=16, messages=MESSAGES)
    assert [block.type for block in answer.content] == ["text"]
    assert answer.content[0].type == "text"
    assert answer.content[0].text == "Hello"
    assert answer.stop_reason == "end_turn"
    assert (answer.usage.input_tokens, answer.usage.cache_read_input_tokens) == (20, 80)
    assert answer.usage.output_tokens == 5


async def test_the_anthropic_sdk_streams_text_thinking_and_calls() -> None:
    async with (
        on_loopback(ScriptedReplica(lambda _: with_everything())) as door,
        door.anthropic() as client,
        client.messages.stream(model="smol", max_tokens=16, messages=MESSAGES) as stream,
    ):
        kinds = [event.type async for event in stream]
        message = await stream.get_final_message()
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    blocks = [block.to_dict() for block in message.content]
    assert [block["type"] for block in blocks] == ["thinking", "text", "tool_use", "tool_use"]
    assert blocks[0]["thinking"] == "Let me think."
    assert [block["input"] for block in blocks[2:]] == [{"path": "a.txt"}, {}]
    assert message.stop_reason == "tool_use"
    assert message.usage.cache_read_input_tokens == 80


async def test_the_openai_sdk_reads_a_whole_answer() -> None:
    async with on_loopback(ScriptedReplica(lambda _: with_everything())) as door, door.openai() as client:
        answer = await client.chat.completions.create(model="default", messages=MESSAGES)
    (choice,) = answer.choices
    assert choice.message.content == "I will look."
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    assert [call.to_dict()["function"] for call in choice.message.tool_calls] == [
        {"name": "Read", "arguments": '{"path":"a.txt"}'},
        {"name": "List", "arguments": "{}"},
    ]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 80


async def test_the_openai_sdk_streams_with_usage() -> None:
    async with (
        on_loopback(ScriptedReplica(lambda _: with_everything())) as door,
        door.openai() as client,
        client.chat.completions.stream(
            model="default", messages=MESSAGES, stream_options={"include_usage": True}
        ) as stream,
    ):
        kinds = {event.type async for event in stream}
        completion = await stream.get_final_completion()
    assert {"chunk", "content.delta", "tool_calls.function.arguments.done"} <= kinds
    assert completion.choices[0].message.content == "I will look."
    assert completion.choices[0].message.tool_calls is not None
    assert completion.choices[0].message.tool_calls[0].function.arguments == '{"path":"a.txt"}'
    assert completion.usage is not None
    assert completion.usage.total_tokens == 105


async def test_both_sdks_list_and_find_models() -> None:
    async with on_loopback(ScriptedReplica()) as door:
        async with door.anthropic() as theirs:
            listed = [model.id async for model in theirs.models.list()]
            found = await theirs.models.retrieve("smol")
        async with door.openai() as ours:
            same = [model.id async for model in ours.models.list()]
            assert (await ours.models.retrieve("default")).object == "model"
    assert listed == same == ["smol", "claude-smol", "default", "haiku", "sonnet", "opus"]
    assert found.max_input_tokens == 8192
    assert found.created_at.year > 2000


async def test_the_anthropic_sdk_counts_tokens() -> None:
    replica = ScriptedReplica()
    async with on_loopback(replica) as door, door.anthropic() as client:
        counted = await client.messages.count_tokens(model="smol", messages=MESSAGES)
    assert counted.input_tokens == 42
    assert replica.counted[0].messages[0].text() == "Hello"


async def test_errors_reach_the_sdks_as_their_own() -> None:
    too_long = Failed(error=to_wire(ContextTooLong(tokens=9000, limit=8192)))
    async with on_loopback(ScriptedReplica(lambda _: [too_long])) as door:
        async with door.anthropic() as theirs:
            with pytest.raises(anthropic.BadRequestError, match="prompt is too long: 9000 tokens > 8192"):
                await theirs.messages.create(model="smol", max_tokens=16, messages=MESSAGES, stream=True)
            with pytest.raises(anthropic.NotFoundError, match="gpt-9"):
                await theirs.messages.create(model="gpt-9", max_tokens=16, messages=MESSAGES)
        async with door.openai() as ours:
            with pytest.raises(openai.BadRequestError, match="prompt is too long") as caught:
                await ours.chat.completions.create(model="smol", messages=MESSAGES)
    assert caught.value.code == "context_length_exceeded"


# Streams and pings


async def test_a_ping_before_the_message_is_fine_for_the_anthropic_sdk() -> None:
    replica = ScriptedReplica()
    async with (
        on_loopback(replica, header_wait_s=0.01, ping_interval_s=0.01) as door,
        door.anthropic() as client,
    ):
        asking = asyncio.create_task(
            client.messages.create(model="smol", max_tokens=16, messages=MESSAGES, stream=True)
        )
        teller = await replica.next_answer()
        stream = await asking  # headers and pings came though nothing was said
        teller.say(*said("Hello"))
        kinds = [event.type async for event in stream]
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"


async def test_pings_before_the_chunks_are_fine_for_the_openai_sdk() -> None:
    replica = ScriptedReplica()
    async with (
        on_loopback(replica, header_wait_s=0.01, ping_interval_s=0.01) as door,
        door.openai() as client,
    ):
        asking = asyncio.create_task(
            client.chat.completions.create(model="smol", messages=MESSAGES, stream=True)
        )
        teller = await replica.next_answer()
        stream = await asking
        teller.say(*said("Hello"))
        text = [chunk.choices[0].delta.content async for chunk in stream]
    assert text == ["", "Hello", None]


@contextlib.asynccontextmanager
async def streaming(door: Door, path: str) -> Any:
    async with door.client() as client, client.stream("POST", path, json=STREAM) as response:
        yield response


@DIALECTS
async def test_headers_go_out_when_the_backend_accepted(path: str) -> None:
    replica = ScriptedReplica()
    async with on_loopback(replica, header_wait_s=LIMIT_S, ping_interval_s=LIMIT_S) as door:
        accept = asyncio.create_task(_accept(replica))
        async with streaming(door, path) as response:  # returns once the headers are there
            assert response.status_code == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            assert response.headers["request-id"].startswith("req_")
            teller = await accept
            teller.say(*said("Hello")[1:])
            raw = await response.aread()
    assert b"Hello" in raw


async def _accept(replica: ScriptedReplica) -> ScriptedAnswer:
    teller = await replica.next_answer()
    teller.say(Accepted(prompt_tokens=100))
    return teller


async def test_pings_come_whenever_nothing_else_does() -> None:
    replica = ScriptedReplica()
    async with on_loopback(replica, ping_interval_s=0.01) as door:
        accept = asyncio.create_task(_accept(replica))
        async with streaming(door, "/v1/messages") as response:
            teller = await accept
            lines = response.aiter_lines()
            await _read_until(lines, "event: ping", 2)
            teller.say(*opening()[1:], TextDelta(text="Hel"))
            await _read_until(lines, "event: content_block_delta", 1)
            await _read_until(lines, "event: ping", 2)
            teller.say(finished())
            await _read_until(lines, "event: message_stop", 1)


async def _read_until(lines: Any, wanted: str, times: int) -> None:
    async for line in lines:
        times -= line == wanted
        if not times:
            return
    raise AssertionError(f"the stream ended without {wanted}")


async def test_an_error_after_the_headers_is_an_event_and_the_last_one() -> None:
    events = [*opening(), TextDelta(text="Hel"), Failed(error=to_wire(EngineLost("the rank died")))]
    replica = ScriptedReplica()
    async with on_loopback(replica) as door:
        accept = asyncio.create_task(_accept(replica))
        async with streaming(door, "/v1/messages") as response:
            (await accept).say(*events[1:])
            found = read_named(await response.aread())
    assert [name for name, _ in found][-2:] == ["content_block_delta", "error"]
    assert found[-1][1]["error"] == {"type": "api_error", "message": "the rank died"}
    assert found[-1][1]["request_id"] == response.headers["request-id"]


async def test_the_sdks_raise_on_an_error_in_the_stream() -> None:
    replica = ScriptedReplica()
    failed = Failed(error=to_wire(EngineLost("the rank died")))
    async with on_loopback(replica) as door, door.anthropic() as theirs, door.openai() as ours:
        accept = asyncio.create_task(_accept(replica))
        stream = await theirs.messages.create(model="smol", max_tokens=16, messages=MESSAGES, stream=True)
        (await accept).say(*opening()[1:], failed)
        with pytest.raises(anthropic.APIStatusError, match="the rank died"):
            [event async for event in stream]
        accept = asyncio.create_task(_accept(replica))
        chunks = await ours.chat.completions.create(model="smol", messages=MESSAGES, stream=True)
        (await accept).say(*opening()[1:], failed)
        with pytest.raises(openai.APIError, match="the rank died"):
            [chunk async for chunk in chunks]


@DIALECTS
async def test_a_replica_that_dies_mid_stream_ends_it_with_one_error(path: str) -> None:
    replica = ScriptedReplica()
    async with on_loopback(replica) as door:
        accept = asyncio.create_task(_accept(replica))
        async with streaming(door, path) as response:
            teller = await accept
            teller.say(*opening()[1:], TextDelta(text="Hel"))
            teller.break_off()
            raw = (await response.aread()).decode()
    assert raw.count("the backend went away before the answer was complete") == 1
    assert "message_stop" not in raw
    assert "[DONE]" not in raw


@DIALECTS
async def test_errors_before_the_headers_have_their_own_status(path: str) -> None:
    full = Failed(error=to_wire(Overloaded(message="the queue is full", retry_after_s=6.5)))
    async with on_loopback(ScriptedReplica(lambda _: [full])) as door, door.client() as client:
        response = await client.post(path, json=STREAM)
    assert response.status_code == (529 if path == "/v1/messages" else 429)
    assert response.headers["retry-after"] == "7"
    assert response.json()["error"]["message"] == "the queue is full"


# Clients that leave


@DIALECTS
async def test_a_client_that_leaves_mid_stream_closes_the_answer(path: str) -> None:
    replica = ScriptedReplica()
    async with on_loopback(replica, ping_interval_s=LIMIT_S) as door:
        accept = asyncio.create_task(_accept(replica))
        async with streaming(door, path) as response:
            teller = await accept
            teller.say(*opening()[1:], TextDelta(text="Hel"))
            async for line in response.aiter_lines():
                if "Hel" in line:
                    break
        await until_closed(teller)


@pytest.mark.parametrize("body", [BODY, STREAM])
@DIALECTS
async def test_a_client_that_leaves_before_the_headers_closes_the_answer(
    path: str, body: dict[str, Any]
) -> None:
    replica = ScriptedReplica()
    async with (
        on_loopback(replica, header_wait_s=LIMIT_S, ping_interval_s=LIMIT_S) as door,
        door.client() as client,
    ):
        asking = asyncio.create_task(client.post(path, json=body))
        teller = await replica.next_answer()
        asking.cancel()
        await asyncio.wait({asking})
        await until_closed(teller)


async def test_a_client_that_leaves_ends_in_one_log_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "keepwarm.gateway.requests")
    replica = ScriptedReplica()
    async with on_loopback(replica, ping_interval_s=LIMIT_S) as door:
        accept = asyncio.create_task(_accept(replica))
        async with streaming(door, "/v1/messages"):
            teller = await accept
            teller.say(*opening()[1:])
        await until_closed(teller)
    (record,) = [record for record in caplog.records if record.name == "keepwarm.gateway.requests"]
    fields = record.__dict__["fields"]
    assert fields["outcome"] == "client_gone"
    assert (fields["prompt_tokens"], fields["cached_tokens"]) == (100, 80)


async def test_a_client_that_reads_nothing_slows_the_reading_and_is_given_up() -> None:
    """Bounded memory: what the sockets do not take is not taken from the replica either."""
    replica = ScriptedReplica()
    async with on_loopback(replica, send_stall_s=0.3) as door:
        _, writer, reader = await _post_without_reading(door, STREAM)
        teller = await replica.next_answer()
        teller.say(*opening())
        num_said = 0
        while not teller.closed.is_set():
            teller.say(TextDelta(text="x" * 100_000))
            num_said += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(teller.closed.wait(), 0.01)
        assert teller.num_taken < num_said
        writer.close()
        reader.feed_eof()


async def _post_without_reading(
    door: Door, body: dict[str, Any]
) -> tuple[socket.socket, asyncio.StreamWriter, asyncio.StreamReader]:
    """Send a request by hand on a socket whose receive buffer is small and never emptied."""
    raw = json.dumps(body).encode()
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    url = httpx.URL(door.url)
    await asyncio.get_running_loop().sock_connect(connection, (url.host, url.port))
    reader, writer = await asyncio.open_connection(sock=connection, limit=1024)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    head = f"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: {KEY}\r\ncontent-length: {len(raw)}\r\n\r\n"
    writer.write(head.encode() + raw)
    return connection, writer, reader


# Shutdown


async def test_at_shutdown_a_running_answer_may_finish_and_new_ones_are_refused() -> None:
    replica = ScriptedReplica()
    async with on_loopback(replica, drain_s=LIMIT_S) as door, door.client() as idle:
        assert (await idle.get("/healthz")).status_code == 200
        accept = asyncio.create_task(_accept(replica))
        async with streaming(door, "/v1/messages") as response:
            teller = await accept
            door.server.stop()
            teller.say(*said("Hello")[1:])
            raw = await response.aread()
        assert b"message_stop" in raw
        await door.serving
        with pytest.raises(httpx.ConnectError):
            await idle.get("/healthz")


async def test_at_shutdown_an_answer_that_does_not_end_is_ended_with_an_error() -> None:
    replica = ScriptedReplica()
    async with on_loopback(replica, drain_s=0.05) as door:
        accept = asyncio.create_task(_accept(replica))
        async with streaming(door, "/v1/messages") as response:
            teller = await accept
            teller.say(*opening()[1:], TextDelta(text="Hel"))
            door.server.stop()
            found = read_named(await response.aread())
        assert found[-1][0] == "error"
        assert "shutting down" in found[-1][1]["error"]["message"]
        await until_closed(teller)
        await door.serving
