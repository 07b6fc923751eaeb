"""A backend's life over a real Unix socket, with a fake model."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import msgspec
import pytest

from keepwarm.chat.events import Accepted, Failed
from keepwarm.chat.wire import encode_ask
from keepwarm.contract.serve import listen_on, serve_backend
from keepwarm.core.errors import BadModel, BadSetting, ErrorOnWire, PortInUse
from tests.contract.asgi_client import events_of
from tests.contract.fake_backend import FINISHED, HELLO, PATIENCE_S, FakeBackend, chat_request

ACCEPTED = Accepted(prompt_tokens=1)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "b.sock")


class Life:
    """One `serve_backend`, and how to end it."""

    def __init__(self, backend: FakeBackend, path: str, *, drain_limit_s: float = PATIENCE_S) -> None:
        self.parent_gone = asyncio.Event()
        self.task = asyncio.create_task(
            serve_backend(backend, path, self._wait_for_the_parent, drain_limit_s=drain_limit_s)
        )

    async def end(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self.task

    async def _wait_for_the_parent(self) -> None:
        await self.parent_gone.wait()


def is_there(path: str) -> bool:
    return Path(path).exists()


@asynccontextmanager
async def client_of(path: str) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.AsyncHTTPTransport(uds=path)
    async with httpx.AsyncClient(transport=transport, base_url="http://b", timeout=PATIENCE_S) as client:
        yield client


async def until_answering(client: httpx.AsyncClient, status: int = 200) -> httpx.Response:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                answer = await client.get("/ready")
            except httpx.HTTPError:
                answer = None
            if answer is not None and answer.status_code == status:
                return answer
            await asyncio.sleep(0.01)


async def test_it_serves_until_it_is_told_to_stop(path: str) -> None:
    backend = FakeBackend(*HELLO)
    life = Life(backend, path)
    async with client_of(path) as client:
        await until_answering(client)
        answer = await client.post("/channel", content=encode_ask(1, chat_request()))
        assert events_of(1, answer.content) == list(HELLO)
        os.kill(os.getpid(), signal.SIGTERM)
        await life.end()
    assert backend.closed.is_set()
    assert not is_there(path)


async def test_while_it_loads_it_says_so_and_can_be_stopped(path: str) -> None:
    backend = FakeBackend()
    backend.may_load.clear()
    life = Life(backend, path)
    async with client_of(path) as client:
        answer = await until_answering(client, 503)
        assert msgspec.msgpack.decode(answer.content, type=ErrorOnWire).code == "not_ready"
        os.kill(os.getpid(), signal.SIGTERM)
        await life.end()
    assert backend.closed.is_set()


async def test_a_setup_error_is_the_caller_s(path: str) -> None:
    backend = FakeBackend(setup_error=BadModel("no weights in /m"))
    with pytest.raises(BadModel, match="no weights in /m"):
        await serve_backend(backend, path)
    assert backend.closed.is_set()
    assert not is_there(path)


async def test_an_open_answer_may_finish_after_the_first_signal(path: str) -> None:
    later = asyncio.Event()
    life = Life(FakeBackend(ACCEPTED, later, FINISHED), path)
    async with client_of(path) as client:
        await until_answering(client)
        async with client.stream("POST", "/channel", content=encode_ask(1, chat_request())) as answer:
            pieces = answer.aiter_bytes()
            first = await anext(pieces)
            os.kill(os.getpid(), signal.SIGTERM)
            await _until_no_longer_listening(path)
            later.set()
            rest = b"".join([piece async for piece in pieces])
        await life.end()
    assert events_of(1, first + rest) == [ACCEPTED, FINISHED]


@pytest.mark.parametrize("how", ["second signal", "parent's death", "drain limit"])
async def test_an_answer_that_goes_on_is_ended_once(path: str, how: str) -> None:
    drain_limit_s = 0.05 if how == "drain limit" else PATIENCE_S
    life = Life(FakeBackend(ACCEPTED, asyncio.Event(), FINISHED), path, drain_limit_s=drain_limit_s)
    async with client_of(path) as client:
        await until_answering(client)
        async with client.stream("POST", "/channel", content=encode_ask(1, chat_request())) as answer:
            pieces = answer.aiter_bytes()
            first = await anext(pieces)
            if how == "parent's death":
                life.parent_gone.set()
            else:
                os.kill(os.getpid(), signal.SIGTERM)
                await _until_no_longer_listening(path)
            if how == "second signal":
                os.kill(os.getpid(), signal.SIGTERM)
            rest = b"".join([piece async for piece in pieces])
        await life.end()
    accepted, end = events_of(1, first + rest)
    assert accepted == ACCEPTED
    assert isinstance(end, Failed)


async def test_a_client_that_drops_its_connection_ends_its_answer(path: str) -> None:
    backend = FakeBackend(ACCEPTED, asyncio.Event(), FINISHED)
    life = Life(backend, path)
    async with client_of(path) as client:
        await until_answering(client)
        async with client.stream("POST", "/channel", content=encode_ask(1, chat_request())) as answer:
            await anext(answer.aiter_bytes())
        async with asyncio.timeout(PATIENCE_S):
            await backend.left.wait()
    life.parent_gone.set()
    await life.end()


def test_only_its_owner_may_use_the_socket(path: str) -> None:
    with listen_on(path):
        assert os.stat(path).st_mode & 0o777 == 0o600


def test_a_socket_that_a_killed_backend_left_is_replaced(path: str) -> None:
    listen_on(path).close()
    assert is_there(path)
    with listen_on(path), socket.socket(socket.AF_UNIX) as probe:
        probe.connect(path)


def test_a_socket_that_somebody_listens_on_is_left_alone(path: str) -> None:
    with listen_on(path):
        with pytest.raises(PortInUse, match="another process listens on"):
            listen_on(path)
        assert is_there(path)


def test_a_path_too_long_for_a_socket_is_named_with_the_limit(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="the system allows 107"):
        listen_on(str(tmp_path / ("x" * 108)))


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="cannot be listened on"):
        listen_on(str(tmp_path / "nowhere" / "b.sock"))


async def _until_no_longer_listening(path: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                _reader, writer = await asyncio.open_unix_connection(path)
            except OSError:
                return
            writer.close()
            await asyncio.sleep(0.01)
