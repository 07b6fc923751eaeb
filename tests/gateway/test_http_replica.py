"""What every replica must do, run on the scripted one and on one behind a Unix socket; then what
only a socket can do wrong."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import uvloop

from keepwarm.chat.events import ChatEvent, Failed, Finished, TextDelta
from keepwarm.chat.messages import Chat, Message, Text, ToolSpec
from keepwarm.chat.request import ChatRequest
from keepwarm.chat.wire import encode_said
from keepwarm.core.errors import (
    BadRequest,
    EngineLost,
    NotReady,
    ReplicaLost,
    to_wire,
)
from keepwarm.core.ids import RequestId, TenantId
from keepwarm.core.sampling import Sampling
from keepwarm.gateway.http_answer import HttpAnswer, ReplicaTimeouts
from keepwarm.gateway.http_replica import HttpReplica
from keepwarm.gateway.ports import Answer, AnswerClosed, Replica
from tests.dialects.answers import finished, opening, said
from tests.gateway.doors import LIMIT_S
from tests.gateway.scripted_backend import Wire, wire
from tests.gateway.scripted_replica import ScriptedAnswer, ScriptedReplica

CHAT = Chat(messages=(Message(role="user", parts=(Text(text="Hello"),)),))
REQUEST = ChatRequest(
    request_id=RequestId("req_1"), tenant=TenantId("default"), chat=CHAT, sampling=Sampling()
)


class Pair:
    """A replica under test, the scripted one that tells it what to say, and how its process dies."""

    def __init__(self, replica: Replica, behind: ScriptedReplica, wire: Wire | None = None) -> None:
        self.replica = replica
        self.behind = behind
        self._wire = wire

    def die(self, *tellers: ScriptedAnswer) -> None:
        for teller in tellers:
            teller.break_off()
        if self._wire is not None:
            self._wire.cut()


@pytest.fixture(params=["scripted", "http"])
async def pair(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Pair]:
    behind = ScriptedReplica()
    if request.param == "scripted":
        yield Pair(behind, behind)
        return
    async with wire(tmp_path / "s", behind) as both:
        yield Pair(both.replica, behind, both)


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
    seen: list[ChatEvent] = []
    while len(seen) < 3:
        seen += await answer.next(LIMIT_S)
    pair.die(teller)
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


async def test_nobody_listening_is_no_turn_lost_but_one_that_may_come_back(tmp_path: Path) -> None:
    replica = HttpReplica(str(tmp_path / "nobody"))
    with pytest.raises(NotReady, match="not there"):
        await replica.chat(REQUEST).next(1)
    with pytest.raises(NotReady, match="not there"):
        await replica.describe()


async def test_an_answer_closed_before_it_began_connects_to_nobody(tmp_path: Path) -> None:
    answer = HttpReplica(str(tmp_path / "nobody")).chat(REQUEST)
    answer.close()
    with pytest.raises(AnswerClosed):
        await answer.next(1)


async def test_numbers_that_do_not_fit_the_wire_are_a_bad_request(tmp_path: Path) -> None:
    tool = ToolSpec(name="Read", description="", parameters={"maximum": 10**30})
    chat = msgspec.structs.replace(CHAT, tools=(tool,))
    replica = HttpReplica(str(tmp_path / "nobody"))
    with pytest.raises(BadRequest, match="tools: an integer does not fit"):
        await replica.chat(msgspec.structs.replace(REQUEST, chat=chat)).next(1)
    with pytest.raises(BadRequest, match="tools: an integer does not fit"):
        await replica.count_tokens(TenantId("default"), chat)


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
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n\x01\0\0\0\x90",
        chunked(b"\xff\xff\xff\xff"),
        chunked(b"\x01\x00\x00\x00\xc1"),
        chunked(encode_said([(1, opening())])[:-1]),
        chunked(encode_said([(1, opening())])),
        chunked(encode_said([(99, said("somebody else's"))])),
        chunked(b"") + b"0\r\n\r\n",
    ],
)
async def test_answers_that_are_none_are_a_lost_replica(tmp_path: Path, answer: bytes) -> None:
    async with raw_backend(tmp_path / "s", answer) as replica:
        with pytest.raises(ReplicaLost), contextlib.closing(replica.chat(REQUEST)) as asked:
            await rest_of(asked)
        with pytest.raises(ReplicaLost):
            await replica.describe()


async def test_a_stream_cut_at_every_byte_reads_alike(tmp_path: Path) -> None:
    events = [*said("é", "x" * 300), Failed(error=to_wire(EngineLost("never read")))]
    raw = encode_said([(1, events[:2])]) + encode_said([(7, events[:1]), (1, events[2:-1])])
    pieces = [raw[i : i + 1] for i in range(len(raw))]
    async with raw_backend(tmp_path / "s", chunked(*pieces)) as replica:
        answer = replica.chat(REQUEST)
        assert await rest_of(answer) == said("é", "x" * 300)
        answer.close()


def test_uvloop_serves_the_same(tmp_path: Path) -> None:
    """What `keepwarm serve` runs on; its transports are none of asyncio's classes."""

    async def ask() -> None:
        async with wire(tmp_path / "s", ScriptedReplica(lambda _: said("Hel", "lo"))) as both:
            answer = both.replica.chat(REQUEST)
            assert await rest_of(answer) == said("Hel", "lo")
            answer.close()
            both.behind.script = None
            left = both.replica.chat(REQUEST)
            assert await left.next(0) == ()
            await both.behind.next_answer()
            teller = await both.behind.next_answer()
            left.close()
            await asyncio.wait_for(teller.closed.wait(), LIMIT_S)
            assert (await both.replica.describe()).model == "smol"

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(ask())


# Many turns on one channel


async def begun(both: Wire, number: int) -> tuple[HttpAnswer, ScriptedAnswer]:
    """A turn of this number that has begun."""
    answer = both.replica.chat(numbered(number))
    assert await answer.next(0) == ()
    return answer, await both.behind.next_answer()


def numbered(number: int) -> ChatRequest:
    return msgspec.structs.replace(REQUEST, request_id=RequestId(f"req_{number}"))


async def test_turns_share_one_connection_and_each_hears_its_own(tmp_path: Path) -> None:
    async with wire(tmp_path / "s") as both:
        pairs = [await begun(both, number) for number in range(20)]
        for number, (_, teller) in enumerate(pairs):
            teller.say(*said(f"I am {number}.", "And go on."))
        for number, (answer, teller) in enumerate(pairs):
            assert await rest_of(answer) == said(f"I am {number}.", "And go on.")
            assert teller.request == numbered(number)
        assert both.num_connections == 1


async def test_turns_that_begin_together_open_one_connection(tmp_path: Path) -> None:
    async with wire(tmp_path / "s", ScriptedReplica(lambda _: said("Hello"))) as both:
        answers = [both.replica.chat(numbered(number)) for number in range(20)]
        heard = await asyncio.gather(*(rest_of(answer) for answer in answers))
        assert heard == [said("Hello")] * 20
        assert both.num_connections == 1
        for answer in answers:
            answer.close()


async def test_a_turn_that_is_cancelled_while_the_channel_opens_takes_nobody_with_it(
    tmp_path: Path,
) -> None:
    async with wire(tmp_path / "s", ScriptedReplica(lambda _: said("Hello"))) as both:
        leaving, staying = both.replica.chat(numbered(1)), both.replica.chat(numbered(2))
        first = asyncio.create_task(_next(leaving))
        second = asyncio.create_task(rest_of(staying))
        await asyncio.sleep(0)
        first.cancel()
        leaving.close()
        assert await second == said("Hello")
        staying.close()
        assert (await both.behind.next_answer()).request == numbered(2)


async def test_a_dead_backend_is_lost_to_every_open_turn_and_the_next_one_connects_anew(
    tmp_path: Path,
) -> None:
    async with wire(tmp_path / "s") as both:
        pairs = [await begun(both, number) for number in range(10)]
        both.cut()
        for answer, _ in pairs:
            with pytest.raises(ReplicaLost, match="went away before the answer was complete"):
                await rest_of(answer)
            answer.close()
        both.behind.script = lambda _: said("Back.")
        answer = both.replica.chat(REQUEST)
        assert await rest_of(answer) == said("Back.")
        answer.close()


async def test_what_came_before_a_death_is_still_read(tmp_path: Path) -> None:
    async with wire(tmp_path / "s") as both:
        slow, teller = await begun(both, 1)
        quick, other = await begun(both, 2)
        teller.say(*opening(), TextDelta(text="Hel"))
        other.say(*opening())
        assert list(await quick.next(LIMIT_S)) == opening()
        both.cut()
        seen: list[ChatEvent] = []
        with pytest.raises(ReplicaLost):
            await _read_into(seen, slow)
        assert seen == [*opening(), TextDelta(text="Hel")]


async def test_a_closed_replica_ends_the_work_of_its_turns(tmp_path: Path) -> None:
    async with wire(tmp_path / "s") as both:
        answer, teller = await begun(both, 1)
        both.replica.close()
        with pytest.raises(ReplicaLost, match="was closed"):
            await answer.next(LIMIT_S)
        async with asyncio.timeout(LIMIT_S):
            await teller.closed.wait()


async def test_a_replica_closed_while_it_connects_keeps_no_connection(tmp_path: Path) -> None:
    async with wire(tmp_path / "s") as both:
        answer = both.replica.chat(REQUEST)
        asking = asyncio.create_task(_next(answer))
        await asyncio.sleep(0)
        both.replica.close()
        with pytest.raises(ReplicaLost):
            await asking
        answer.close()
        await both.until_nobody_is_connected()


async def test_a_request_of_megabytes_arrives_whole_while_others_are_answered(tmp_path: Path) -> None:
    message = Message(role="user", parts=(Text(text="word " * 2_000_000),))
    large = msgspec.structs.replace(REQUEST, chat=Chat(messages=(message,)))
    async with wire(tmp_path / "s") as both:
        quick, teller = await begun(both, 1)
        slow = both.replica.chat(large)
        assert await slow.next(0) == ()
        teller.say(*said("Hello"))
        assert await rest_of(quick) == said("Hello")
        other = await both.behind.next_answer()
        assert other.request == large
        other.say(*said("I have read it."))
        assert await rest_of(slow) == said("I have read it.")
        slow.close()
        quick.close()


async def test_a_backend_that_shuts_down_ends_the_channel_after_its_turns(tmp_path: Path) -> None:
    async with wire(tmp_path / "s") as both:
        answer, teller = await begun(both, 1)
        both.app.end_channels()
        teller.say(*said("The end."))
        assert await rest_of(answer) == said("The end.")
        await both.until_nobody_is_connected()


async def test_a_turn_that_was_left_is_not_heard_any_more(tmp_path: Path) -> None:
    async with wire(tmp_path / "s") as both:
        left, teller = await begun(both, 1)
        stays, other = await begun(both, 2)
        teller.say(*said("too late"))
        left.close()
        other.say(*said("Hello"))
        assert await rest_of(stays) == said("Hello")
        with pytest.raises(AnswerClosed):
            await left.next(0)
        stays.close()


async def test_a_silent_backend_is_lost_after_the_limit(tmp_path: Path) -> None:
    async with wire(tmp_path / "s") as both:
        replica = both.other_replica(ReplicaTimeouts(silence_s=0.05))
        answer = replica.chat(REQUEST)
        with pytest.raises(ReplicaLost, match=r"said nothing for 0\.05 s"):
            await answer.next(LIMIT_S)
        answer.close()
        replica.close()


async def test_a_reader_that_takes_nothing_pauses_its_turn_and_no_other(tmp_path: Path) -> None:
    """A bounded buffer fills, then the backend is not asked for more of this turn."""
    many = [TextDelta(text=f"{number:01000d}") for number in range(20_000)]
    async with wire(tmp_path / "s") as both:
        slow, teller = await begun(both, 1)
        quick, other = await begun(both, 2)
        teller.say(*opening(), *many, finished())
        for number in range(50):  # the other turn goes on meanwhile
            other.say(TextDelta(text=str(number)))
            assert list(await quick.next(LIMIT_S)) == [TextDelta(text=str(number))]
        assert slow.num_held_bytes < 8_000_000 < sum(len(delta.text) for delta in many)
        assert await rest_of(slow) == [*opening(), *many, finished()]
        slow.close()
        quick.close()


@pytest.mark.parametrize("seed", range(3))
async def test_many_turns_with_clients_that_come_and_go(tmp_path: Path, seed: int) -> None:
    """Each turn that is read to its end hears all of it, each that is left is closed behind the wire."""
    rng = random.Random(seed)
    words = [f"{number} " for number in range(30)]

    async def one(number: int) -> None:
        answer = both.replica.chat(numbered(number))
        with contextlib.closing(answer):
            assert await answer.next(0) == ()
            teller = await both.behind.next_answer()
            stays = rng.random() < 0.6
            said_so_far = [*opening()]
            teller.say(*said_so_far)
            for word in words[: len(words) if stays else rng.randrange(len(words))]:
                teller.say(TextDelta(text=word))
                if rng.random() < 0.5:
                    await asyncio.sleep(0)
            if not stays:
                answer.close()
                await asyncio.wait_for(teller.closed.wait(), LIMIT_S)
                return
            teller.say(finished())
            heard = await rest_of(answer)
            whole = [*opening(), *(TextDelta(text=word) for word in words), finished()]
            assert len(heard) == len(whole)

    async with wire(tmp_path / "s") as both:
        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
            for number in range(80):
                group.create_task(one(number))
        assert both.num_connections == 1
