"""Whatever a backend does, its gateway hears one end of each turn; whatever a gateway does, its
backend stops. The same for backends that are asked and for those that tell."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

import msgspec
import pytest

from keepwarm.chat.events import Accepted, ChatEvent, Failed, TextDelta
from keepwarm.chat.wire import Ask, Leave, Pause, Resume, encode_ask, encode_message
from keepwarm.contract import channel, pulled_turn
from keepwarm.contract.backend import Backend
from keepwarm.contract.runtime import BackendApp
from keepwarm.core.errors import ContextTooLong, InvariantBroken, from_wire
from tests.contract.asgi_client import AsgiClient
from tests.contract.fake_backend import FINISHED, HELLO, PATIENCE_S, FakeBackend, Said, chat_request
from tests.contract.fake_telling_backend import FakeTellingBackend

ACCEPTED = Accepted(prompt_tokens=1)
Kind = Callable[[FakeBackend], Backend]


@pytest.fixture(params=["asked", "telling"])
def kind(request: pytest.FixtureRequest) -> Kind:
    return FakeTellingBackend if request.param == "telling" else lambda backend: backend


def ready_app(backend: Backend) -> BackendApp:
    app = BackendApp(backend)
    app.refusal = None
    return app


def asking(number: int = 1) -> AsgiClient:
    """Asks for one turn and nothing more."""
    return AsgiClient("POST", "/channel", encode_ask(number, chat_request()))


def asking_on(*numbers: int) -> AsgiClient:
    """Asks for these turns, and may say more."""
    asks = [encode_ask(number, chat_request(f"r{number}")) for number in numbers]
    return AsgiClient("POST", "/channel", b"".join(asks), goes_on=True)


class Call:
    """A channel while it is served."""

    def __init__(self, client: AsgiClient, backend: Backend) -> None:
        self.client = client
        self.app = ready_app(backend)
        self.task = asyncio.create_task(client.call(self.app))

    async def __aenter__(self) -> Call:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.client.go_away()
        await self.task

    async def until(self, is_reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not is_reached():
                await asyncio.sleep(0)


async def until_left(backend: FakeBackend) -> None:
    """One that is asked is closed before the channel is over; one that tells stops on its own."""
    async with asyncio.timeout(PATIENCE_S):
        await backend.left.wait()


async def answers(kind: Kind, *said: Said) -> list[ChatEvent]:
    client = asking()
    await client.call(ready_app(kind(FakeBackend(*said))))
    assert client.status == 200
    assert client.is_complete
    return client.events()


async def test_an_answer_arrives_as_it_was_said(kind: Kind) -> None:
    assert await answers(kind, *HELLO) == list(HELLO)


async def test_what_is_said_without_waiting_is_one_piece(kind: Kind) -> None:
    later = asyncio.Event()
    client = asking()
    backend = FakeBackend(ACCEPTED, TextDelta(text="a"), later, TextDelta(text="b"), FINISHED)
    call = asyncio.create_task(client.call(ready_app(kind(backend))))
    await client.until_heard(1)
    later.set()
    await call
    assert len([body for body in client.bodies if body]) == 2
    assert len(client.events()) == 4


async def test_what_many_turns_say_at_once_is_one_piece(kind: Kind) -> None:
    later = asyncio.Event()
    numbers = range(1, 51)
    async with Call(asking_on(*numbers), kind(FakeBackend(ACCEPTED, later, FINISHED))) as call:
        await call.until(lambda: all(call.client.events(number) == [ACCEPTED] for number in numbers))
        num_before = len(call.client.bodies)
        later.set()
        await call.until(lambda: all(len(call.client.events(number)) == 2 for number in numbers))
        assert len(call.client.bodies) - num_before == 1


async def test_an_error_of_the_tree_before_the_first_event_is_the_one_event(kind: Kind) -> None:
    (failed,) = await answers(kind, ContextTooLong(tokens=11, limit=10))
    assert isinstance(failed, Failed)
    error = from_wire(failed.error)
    assert isinstance(error, ContextTooLong)
    assert (error.tokens, error.limit) == (11, 10)


async def test_an_unknown_exception_is_logged_and_told_without_its_text(
    kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    *_, failed = await answers(kind, ACCEPTED, ValueError("the user's own words"))
    assert isinstance(failed, Failed)
    assert failed.error.code == "internal_error"
    assert failed.error.fields == {"message": "the backend failed on ValueError"}
    assert "Traceback" in caplog.text


async def test_our_own_mistake_is_logged_too(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    (failed,) = await answers(kind, InvariantBroken("a block is lost"))
    assert isinstance(failed, Failed)
    assert failed.error.code == "internal_error"
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


async def test_an_answer_that_stops_without_an_end_gets_one(kind: Kind) -> None:
    *_, failed = await answers(kind, ACCEPTED)
    assert isinstance(failed, Failed)
    assert failed.error.code == "internal_error"


async def test_nothing_follows_the_end(kind: Kind) -> None:
    assert await answers(kind, *HELLO, TextDelta(text="more"), FINISHED) == list(HELLO)


@pytest.mark.parametrize("num_events", [0, 1])
async def test_a_gateway_that_goes_away_ends_its_answers_at_once(kind: Kind, num_events: int) -> None:
    backend = FakeBackend(*[ACCEPTED][:num_events], asyncio.Event(), FINISHED)
    client = asking()
    call = asyncio.create_task(client.call(ready_app(kind(backend))))
    if num_events:
        await client.until_heard(1)
    else:
        await asyncio.sleep(0)
    client.go_away()
    await call
    assert backend.num_said == num_events
    if num_events:
        await until_left(backend)
    assert not client.bodies or not client.is_complete


async def test_a_broken_pipe_ends_the_answers_too(kind: Kind) -> None:
    backend = FakeBackend(ACCEPTED, asyncio.Event(), FINISHED)
    client = asking()
    client.breaks_with = BrokenPipeError()
    await client.call(ready_app(kind(backend)))
    await until_left(backend)


async def test_a_gateway_that_reads_nothing_is_taken_for_gone(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "_WRITE_LIMIT_S", 0.01)
    backend = FakeBackend(ACCEPTED, asyncio.Event(), FINISHED)
    client = asking()
    client.may_read.clear()
    await client.call(ready_app(kind(backend)))
    await until_left(backend)


async def test_a_backend_is_not_asked_for_more_than_a_slow_gateway_may_have_pending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pulled_turn, "_MAX_UNREAD_EVENTS", 4)
    deltas = [TextDelta(text=str(number)) for number in range(50)]
    backend = FakeBackend(*deltas, FINISHED)
    client = asking()
    client.may_read.clear()
    call = asyncio.create_task(client.call(ready_app(backend)))
    for _ in range(100):
        await asyncio.sleep(0)
    assert backend.num_said == 8  # four on their way out, four pending
    client.may_read.set()
    await call
    assert client.events() == [*deltas, FINISHED]


async def test_cancelling_the_request_closes_the_answers(kind: Kind) -> None:
    backend = FakeBackend(ACCEPTED, asyncio.Event(), FINISHED)
    client = asking()
    call = asyncio.create_task(client.call(ready_app(kind(backend))))
    await client.until_heard(1)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await until_left(backend)


async def test_a_turn_that_is_left_stops_and_is_not_spoken_of_again(kind: Kind) -> None:
    later = asyncio.Event()
    backend = FakeBackend(ACCEPTED, later, FINISHED)
    async with Call(asking_on(1, 2), kind(backend)) as call:
        await call.until(lambda: call.client.events(1) == call.client.events(2) == [ACCEPTED])
        call.client.say(encode_message(Leave(number=1)))
        await call.until(backend.left.is_set)
        later.set()
        await call.until(lambda: call.client.events(2) == [ACCEPTED, FINISHED])
        assert call.client.events(1) == [ACCEPTED]


async def test_leaving_a_turn_that_is_over_or_was_never_asked_for_means_nothing(kind: Kind) -> None:
    async with Call(asking_on(1), kind(FakeBackend(*HELLO))) as call:
        await call.until(lambda: call.client.events(1) == list(HELLO))
        for message in (Leave(number=1), Leave(number=9), Pause(number=1), Resume(number=9)):
            call.client.say(encode_message(message))
        call.client.say(encode_ask(2, chat_request("r2")))
        await call.until(lambda: call.client.events(2) == list(HELLO))


async def test_a_paused_turn_waits_and_then_says_everything_in_order(kind: Kind) -> None:
    later = asyncio.Event()
    deltas = [TextDelta(text=str(number)) for number in range(20)]
    backend = FakeBackend(ACCEPTED, later, *deltas, FINISHED)
    async with Call(asking_on(1, 2), kind(backend)) as call:
        await call.until(lambda: call.client.events(1) == call.client.events(2) == [ACCEPTED])
        call.client.say(encode_message(Pause(number=1)))
        await asyncio.sleep(0)
        later.set()
        await call.until(lambda: call.client.events(2) == [ACCEPTED, *deltas, FINISHED])
        assert call.client.events(1) == [ACCEPTED]
        call.client.say(encode_message(Resume(number=1)))
        await call.until(lambda: call.client.events(1) == [ACCEPTED, *deltas, FINISHED])


async def test_a_backend_is_not_asked_for_more_while_its_turn_is_paused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pulled_turn, "_MAX_UNREAD_EVENTS", 4)
    later = asyncio.Event()
    deltas = [TextDelta(text=str(number)) for number in range(50)]
    backend = FakeBackend(ACCEPTED, later, *deltas, FINISHED)
    async with Call(asking_on(1), backend) as call:
        await call.until(lambda: call.client.events(1) == [ACCEPTED])
        call.client.say(encode_message(Pause(number=1)))
        await asyncio.sleep(0)
        later.set()
        for _ in range(100):
            await asyncio.sleep(0)
        assert backend.num_said == 1 + 4
        call.client.say(encode_message(Resume(number=1)))
        await call.until(lambda: call.client.events(1) == [ACCEPTED, *deltas, FINISHED])


async def test_a_request_that_cannot_be_read_is_that_turn_s_end_alone(kind: Kind) -> None:
    nonsense = encode_message(Ask(number=7, request=msgspec.Raw(msgspec.msgpack.encode([1, 2]))))
    client = AsgiClient("POST", "/channel", nonsense + encode_ask(8, chat_request()))
    await client.call(ready_app(kind(FakeBackend(*HELLO))))
    (failed,) = client.events(7)
    assert isinstance(failed, Failed)
    assert failed.error.code == "bad_request"
    assert client.events(8) == list(HELLO)


@pytest.mark.parametrize("nonsense", [b"\x01\0\0\0\xc1", b"\xff\xff\xff\xff", b"GET / HTTP/1.1\r\n\r\n"])
async def test_a_channel_that_speaks_something_else_is_dropped_with_its_turns(
    kind: Kind, nonsense: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    backend = FakeBackend(ACCEPTED, asyncio.Event(), FINISHED)
    call = Call(asking_on(1), kind(backend))
    await call.until(lambda: call.client.events(1) == [ACCEPTED])
    call.client.say(nonsense)
    await call.task
    await until_left(backend)
    assert not call.client.is_complete
    assert "channel is dropped" in caplog.text


async def test_a_number_that_is_open_drops_the_channel(kind: Kind) -> None:
    backend = FakeBackend(ACCEPTED, asyncio.Event(), FINISHED)
    call = Call(asking_on(1), kind(backend))
    await call.until(lambda: call.client.events(1) == [ACCEPTED])
    call.client.say(encode_ask(1, chat_request()))
    await call.task
    await until_left(backend)


async def test_at_the_end_an_idle_channel_ends_and_a_busy_one_ends_with_its_turns(kind: Kind) -> None:
    later = asyncio.Event()
    idle = Call(asking_on(), kind(FakeBackend()))
    busy = Call(asking_on(1), kind(FakeBackend(ACCEPTED, later, FINISHED)))
    await busy.until(lambda: busy.client.events(1) == [ACCEPTED])
    await idle.until(lambda: bool(idle.client.sent))
    idle.app.end_channels()
    busy.app.end_channels()
    await idle.task
    assert idle.client.is_complete
    assert not busy.task.done()
    later.set()
    await busy.task
    assert busy.client.is_complete
    assert busy.client.events(1) == [ACCEPTED, FINISHED]


async def test_a_turn_that_is_left_may_be_the_last_of_an_ending_channel(kind: Kind) -> None:
    call = Call(asking_on(1), kind(FakeBackend(ACCEPTED, asyncio.Event(), FINISHED)))
    await call.until(lambda: call.client.events(1) == [ACCEPTED])
    call.app.end_channels()
    call.client.say(encode_message(Leave(number=1)))
    await call.task
    assert call.client.is_complete


@pytest.mark.parametrize("seed", range(5))
async def test_whatever_a_gateway_says_each_turn_ends_once_or_was_left(kind: Kind, seed: int) -> None:
    """Turns asked for, paused, resumed and left at random while others speak."""
    rng = random.Random(seed)
    ticks = [asyncio.Event() for _ in range(12)]
    words: list[Said] = [
        said for number, tick in enumerate(ticks) for said in (tick, TextDelta(text=str(number)))
    ]
    whole = [ACCEPTED, *(TextDelta(text=str(number)) for number in range(len(ticks))), FINISHED]
    left: set[int] = set()
    async with Call(asking_on(*range(1, 31)), kind(FakeBackend(ACCEPTED, *words, FINISHED))) as call:
        for tick in ticks:
            for number in rng.sample(range(1, 31), 6):
                message = rng.choice((Leave, Pause, Resume))(number=number)
                call.client.say(encode_message(message))
                if isinstance(message, Leave):
                    left.add(number)
            tick.set()
            for _ in range(rng.randrange(6)):
                await asyncio.sleep(0)
        for number in range(1, 31):
            call.client.say(encode_message(Resume(number=number)))
        stay = [number for number in range(1, 31) if number not in left]
        await call.until(lambda: all(call.client.events(number)[-1:] == [FINISHED] for number in stay))
        assert all(call.client.events(number) == whole for number in stay)
        for number in left:
            heard = call.client.events(number)
            assert heard == whole[: len(heard)]
