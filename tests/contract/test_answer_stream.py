"""Whatever a backend does, its client hears one end; whatever a client does, its backend stops."""

from __future__ import annotations

import asyncio
import logging

import pytest

from keepwarm.chat.events import Accepted, ChatEvent, Failed, TextDelta
from keepwarm.chat.wire import encode_request
from keepwarm.contract import answer_stream
from keepwarm.contract.runtime import BackendApp
from keepwarm.core.errors import ContextTooLong, InvariantBroken, from_wire
from tests.contract.asgi_client import AsgiClient
from tests.contract.fake_backend import FINISHED, HELLO, PATIENCE_S, FakeBackend, Said, chat_request

ACCEPTED = Accepted(prompt_tokens=1)


def ready_app(backend: FakeBackend) -> BackendApp:
    app = BackendApp(backend)
    app.refusal = None
    return app


def asking() -> AsgiClient:
    return AsgiClient("POST", "/chat", encode_request(chat_request()))


async def answers(*said: Said) -> list[ChatEvent]:
    client = asking()
    await client.call(ready_app(FakeBackend(*said)))
    assert client.status == 200
    assert client.is_complete
    return client.events


async def test_an_answer_arrives_as_it_was_said() -> None:
    assert await answers(*HELLO) == list(HELLO)


async def test_what_is_said_without_waiting_is_one_piece() -> None:
    later = asyncio.Event()
    client = asking()
    call = asyncio.create_task(
        client.call(
            ready_app(FakeBackend(ACCEPTED, TextDelta(text="a"), later, TextDelta(text="b"), FINISHED))
        )
    )
    await client.until_heard(1)
    later.set()
    await call
    assert len(client.bodies) == 2
    assert len(client.events) == 4


async def test_an_error_of_the_tree_before_the_first_event_is_the_one_event() -> None:
    (failed,) = await answers(ContextTooLong(tokens=11, limit=10))
    assert isinstance(failed, Failed)
    error = from_wire(failed.error)
    assert isinstance(error, ContextTooLong)
    assert (error.tokens, error.limit) == (11, 10)


async def test_an_unknown_exception_is_logged_and_told_without_its_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    *_, failed = await answers(ACCEPTED, ValueError("the user's own words"))
    assert isinstance(failed, Failed)
    assert failed.error.code == "internal_error"
    assert failed.error.fields == {"message": "the backend failed on ValueError"}
    assert "Traceback" in caplog.text


async def test_our_own_mistake_is_logged_too(caplog: pytest.LogCaptureFixture) -> None:
    (failed,) = await answers(InvariantBroken("a block is lost"))
    assert isinstance(failed, Failed)
    assert failed.error.code == "internal_error"
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


async def test_an_answer_that_stops_without_an_end_gets_one() -> None:
    *_, failed = await answers(ACCEPTED)
    assert isinstance(failed, Failed)
    assert failed.error.code == "internal_error"


async def test_nothing_follows_the_end() -> None:
    assert await answers(*HELLO, TextDelta(text="more"), FINISHED) == list(HELLO)


@pytest.mark.parametrize("num_events", [0, 1])
async def test_a_client_that_goes_away_ends_the_answer_at_once(num_events: int) -> None:
    backend = FakeBackend(*[ACCEPTED][:num_events], asyncio.Event(), FINISHED)
    client = asking()
    call = asyncio.create_task(client.call(ready_app(backend)))
    if num_events:
        await client.until_heard(1)
    else:
        await asyncio.sleep(0)
    client.go_away()
    await call
    assert backend.num_said == num_events
    assert not num_events or backend.left.is_set()
    assert not client.bodies or not client.is_complete


async def test_a_broken_pipe_ends_the_answer_too() -> None:
    backend = FakeBackend(ACCEPTED, asyncio.Event(), FINISHED)
    client = asking()
    client.breaks_with = BrokenPipeError()
    await client.call(ready_app(backend))
    assert backend.left.is_set()


async def test_a_client_that_reads_nothing_is_taken_for_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_stream, "_WRITE_LIMIT_S", 0.01)
    backend = FakeBackend(ACCEPTED, asyncio.Event(), FINISHED)
    client = asking()
    client.may_read.clear()
    await client.call(ready_app(backend))
    assert backend.left.is_set()


async def test_a_backend_is_not_asked_for_more_than_a_slow_client_may_have_pending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answer_stream, "_MAX_PENDING_EVENTS", 4)
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
    assert client.events == [*deltas, FINISHED]


async def test_cancelling_the_request_closes_the_answer() -> None:
    backend = FakeBackend(ACCEPTED, asyncio.Event(), FINISHED)
    client = asking()
    call = asyncio.create_task(client.call(ready_app(backend)))
    await client.until_heard(1)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    async with asyncio.timeout(PATIENCE_S):
        await backend.left.wait()
