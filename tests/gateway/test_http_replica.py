"""What every replica must do, run on the scripted one and on one behind a Unix socket; then what
only a socket can do wrong."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop

from keepwarm.chat.events import ChatEvent, Failed, Finished, TextDelta
from keepwarm.chat.messages import Chat, Message, Text, ToolSpec
from keepwarm.chat.request import ChatRequest
from keepwarm.chat.wire import decode_request, encode_events
from keepwarm.core.errors import (
    BadRequest,
    EngineLost,
    KeepwarmError,
    NotReady,
    Overloaded,
    ReplicaLost,
    to_wire,
)
from keepwarm.core.ids import RequestId, TenantId
from keepwarm.core.sampling import Sampling
from keepwarm.gateway.http_replica import CountReply, CountRequest, HttpReplica, ReplicaTimeouts
from keepwarm.gateway.ports import Answer, AnswerClosed, Replica
from tests.dialects.answers import opening, said
from tests.gateway.doors import LIMIT_S
from tests.gateway.scripted_replica import ScriptedAnswer, ScriptedReplica
from tests.gateway.sockets import listening

CHAT = Chat(messages=(Message(role="user", parts=(Text(text="Hello"),)),))
REQUEST = ChatRequest(
    request_id=RequestId("req_1"), tenant=TenantId("default"), chat=CHAT, sampling=Sampling()
)

Scope = Any
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class SocketRuntime:
    """The routes of a backend process, over a scripted replica."""

    def __init__(self, behind: ScriptedReplica) -> None:
        self.behind = behind
        self.refuse: KeepwarmError | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        more = True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        try:
            if self.refuse is not None:
                raise self.refuse
            await self._answer(scope["path"], body, receive, send)
        except KeepwarmError as error:
            await _whole(send, 503, msgspec.msgpack.encode(to_wire(error)))

    async def _answer(self, path: str, body: bytes, receive: Receive, send: Send) -> None:
        match path:
            case "/chat":
                await self._stream(decode_request(body), receive, send)
            case "/count":
                asked = msgspec.msgpack.decode(body, type=CountRequest)
                tokens = await self.behind.count_tokens(asked.tenant, asked.chat)
                await _whole(send, 200, msgspec.msgpack.encode(CountReply(tokens=tokens)))
            case "/ready":
                await _whole(send, 200, msgspec.msgpack.encode(await self.behind.describe()))
            case _:
                await _whole(send, 200, (await self.behind.metrics_text()).encode())

    async def _stream(self, request: ChatRequest, receive: Receive, send: Send) -> None:
        answer = self.behind.chat(request)
        await send({"type": "http.response.start", "status": 200, "headers": []})

        async def close_when_gone() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            answer.close()

        gone = asyncio.create_task(close_when_gone())
        with contextlib.suppress(ReplicaLost, AnswerClosed):
            while events := await answer.next(LIMIT_S):
                ended = isinstance(events[-1], Finished | Failed)
                await send(
                    {"type": "http.response.body", "body": encode_events(events), "more_body": not ended}
                )
                if ended:
                    break
        gone.cancel()


async def _whole(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@contextlib.asynccontextmanager
async def behind_socket(behind: ScriptedReplica, path: Path) -> AsyncIterator[SocketRuntime]:
    runtime = SocketRuntime(behind)
    async with listening(runtime, path):
        yield runtime


class Pair:
    """A replica under test, and the scripted one that tells it what to say."""

    def __init__(self, replica: Replica, behind: ScriptedReplica) -> None:
        self.replica = replica
        self.behind = behind


@pytest.fixture(params=["scripted", "http"])
async def pair(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Pair]:
    behind = ScriptedReplica()
    if request.param == "scripted":
        yield Pair(behind, behind)
        return
    async with behind_socket(behind, tmp_path / "s"):
        yield Pair(HttpReplica(str(tmp_path / "s")), behind)


async def started(pair: Pair) -> tuple[Answer, ScriptedAnswer]:
    """An answer that has begun to be read, and who tells it what to say."""
    answer = pair.replica.chat(REQUEST)
    assert await answer.next(0) == ()
    return answer, await pair.behind.next_answer()


async def rest_of(answer: Answer) -> list[ChatEvent]:
    events: list[ChatEvent] = []
    while not (events and isinstance(events[-1], Finished | Failed)):
        events += await answer.next(LIMIT_S)
    return events


async def test_events_come_in_order_and_the_request_arrives_whole(pair: Pair) -> None:
    answer, teller = await started(pair)
    teller.say(*said("Hel", "lo"))
    assert await rest_of(answer) == said("Hel", "lo")
    assert teller.request == REQUEST
    answer.close()


async def test_nothing_said_is_an_empty_answer_and_loses_nothing(pair: Pair) -> None:
    answer, teller = await started(pair)
    assert await answer.next(0.01) == ()
    teller.say(*said("late"))
    assert await rest_of(answer) == said("late")
    answer.close()


async def test_closing_stops_the_work_at_once(pair: Pair) -> None:
    answer, teller = await started(pair)
    teller.say(*opening())
    assert list(await answer.next(LIMIT_S)) == opening()
    answer.close()
    async with asyncio.timeout(LIMIT_S):
        await teller.closed.wait()
    with pytest.raises(AnswerClosed):
        await answer.next(LIMIT_S)


async def test_closing_wakes_the_reader(pair: Pair) -> None:
    answer, _ = await started(pair)
    reading = asyncio.create_task(_next(answer))
    await asyncio.sleep(0)
    answer.close()
    answer.close()
    with pytest.raises(AnswerClosed):
        async with asyncio.timeout(LIMIT_S):
            await reading


async def test_a_replica_that_dies_before_the_end_is_lost(pair: Pair) -> None:
    answer, teller = await started(pair)
    teller.say(*opening(), TextDelta(text="Hel"))
    teller.break_off()
    seen: list[ChatEvent] = []
    with pytest.raises(ReplicaLost):
        await _read_into(seen, answer)
    assert seen == [*opening(), TextDelta(text="Hel")]
    answer.close()


async def test_counts_descriptions_and_metrics_come_through(pair: Pair) -> None:
    assert await pair.replica.count_tokens(TenantId("default"), CHAT) == 42
    assert pair.behind.counted == [CHAT]
    assert (await pair.replica.describe()).max_model_len == 8192
    assert await pair.replica.metrics_text() == "scripted_metric 1.0\n"


async def test_why_a_replica_is_not_ready_comes_through(pair: Pair) -> None:
    pair.behind.not_ready = NotReady("the model is loading")
    with pytest.raises(NotReady, match="the model is loading"):
        await pair.replica.describe()


async def _read_into(seen: list[ChatEvent], answer: Answer) -> None:
    while True:
        seen += await answer.next(LIMIT_S)


async def _next(answer: Answer) -> object:
    return await answer.next(LIMIT_S)


# Only over a socket


async def test_nobody_listening_is_a_lost_replica(tmp_path: Path) -> None:
    replica = HttpReplica(str(tmp_path / "nobody"))
    with pytest.raises(ReplicaLost, match="not there"):
        await replica.chat(REQUEST).next(1)
    with pytest.raises(ReplicaLost, match="not there"):
        await replica.describe()


async def test_an_answer_closed_before_it_began_connects_to_nobody(tmp_path: Path) -> None:
    answer = HttpReplica(str(tmp_path / "nobody")).chat(REQUEST)
    answer.close()
    with pytest.raises(AnswerClosed):
        await answer.next(1)


async def test_a_refusal_with_a_status_is_the_backends_own_error(tmp_path: Path) -> None:
    async with behind_socket(ScriptedReplica(), tmp_path / "s") as runtime:
        runtime.refuse = Overloaded(message="the queue is full", retry_after_s=9)
        with pytest.raises(Overloaded, match="the queue is full") as caught:
            await HttpReplica(str(tmp_path / "s")).chat(REQUEST).next(LIMIT_S)
    assert caught.value.retry_after_s == 9


async def test_numbers_that_do_not_fit_the_wire_are_a_bad_request(tmp_path: Path) -> None:
    tool = ToolSpec(name="Read", description="", parameters={"maximum": 10**30})
    request = msgspec.structs.replace(REQUEST, chat=msgspec.structs.replace(CHAT, tools=(tool,)))
    with pytest.raises(BadRequest, match="tools: an integer does not fit"):
        await HttpReplica(str(tmp_path / "nobody")).chat(request).next(1)


@contextlib.asynccontextmanager
async def raw_backend(path: Path, answer: bytes) -> AsyncIterator[HttpReplica]:
    """A listener that says these bytes to whoever connects, and hangs up."""

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(say, str(path))
    async with server:
        yield HttpReplica(str(path))


def chunked(*pieces: bytes) -> bytes:
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + body


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"this is not HTTP\r\n\r\n",
        b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 4\r\n\r\noops",
        b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 400\r\n\r\noops",
        chunked(b"\xff\xff\xff\xff"),
        chunked(b"\x01\x00\x00\x00\xc1"),
        chunked(encode_events(opening())[:-1]),
        chunked(b"") + b"0\r\n\r\n",
    ],
)
async def test_answers_that_are_none_are_a_lost_replica(tmp_path: Path, answer: bytes) -> None:
    async with raw_backend(tmp_path / "s", answer) as replica:
        with pytest.raises(ReplicaLost):
            await rest_of(replica.chat(REQUEST))
        with pytest.raises(ReplicaLost):
            await replica.describe()


async def test_a_stream_cut_at_every_byte_reads_alike(tmp_path: Path) -> None:
    raw = encode_events([*said("é", "x" * 300), Failed(error=to_wire(EngineLost("never read")))])
    pieces = [raw[i : i + 1] for i in range(len(raw))]
    async with raw_backend(tmp_path / "s", chunked(*pieces)) as replica:
        answer = replica.chat(REQUEST)
        assert await rest_of(answer) == said("é", "x" * 300)
        answer.close()


def test_uvloop_serves_the_same(tmp_path: Path) -> None:
    """What `keepwarm serve` runs on; its transports are none of asyncio's classes."""

    async def ask() -> None:
        behind = ScriptedReplica(lambda _: said("Hel", "lo"))
        async with behind_socket(behind, tmp_path / "s"):
            replica = HttpReplica(str(tmp_path / "s"))
            answer = replica.chat(REQUEST)
            assert await rest_of(answer) == said("Hel", "lo")
            answer.close()
            behind.script = None
            left = replica.chat(REQUEST)
            assert await left.next(0) == ()
            await behind.next_answer()
            teller = await behind.next_answer()
            left.close()
            await asyncio.wait_for(teller.closed.wait(), LIMIT_S)
            assert (await replica.describe()).model == "smol"

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(ask())


async def test_a_silent_backend_is_lost_after_the_limit(tmp_path: Path) -> None:
    behind = ScriptedReplica()
    async with behind_socket(behind, tmp_path / "s"):
        replica = HttpReplica(str(tmp_path / "s"), ReplicaTimeouts(silence_s=0.05))
        answer = replica.chat(REQUEST)
        with pytest.raises(ReplicaLost, match=r"said nothing for 0\.05 s"):
            await answer.next(LIMIT_S)
        answer.close()


async def test_a_reader_that_takes_nothing_slows_the_backend(tmp_path: Path) -> None:
    """The socket and a bounded buffer fill, then the backend's own writes wait."""
    behind = ScriptedReplica()
    megabyte = TextDelta(text="x" * 1_000_000)
    async with behind_socket(behind, tmp_path / "s"):
        answer = HttpReplica(str(tmp_path / "s")).chat(REQUEST)
        await answer.next(0)
        teller = await behind.next_answer()
        held = 0
        for _ in range(40):
            teller.say(megabyte)
            await asyncio.sleep(0.002)
            held = max(held, answer._connection._held_bytes if answer._connection else 0)
        assert held < 2_000_000
        taken = 0
        while taken < 40:
            taken += len(await answer.next(LIMIT_S))
        answer.close()
