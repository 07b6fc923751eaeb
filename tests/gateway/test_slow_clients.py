"""From a client's socket to a backend's iterator: who reads nothing slows itself, and nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from keepwarm.chat.events import TextDelta
from tests.dialects.answers import finished, opening, said
from tests.gateway.doors import KEY, LIMIT_S, Door, on_loopback
from tests.gateway.scripted_backend import Wire, wire
from tests.gateway.scripted_replica import ScriptedAnswer

STREAM: dict[str, Any] = {
    "model": "smol",
    "max_tokens": 16,
    "stream": True,
    "messages": [{"role": "user", "content": "Hello"}],
}
PIECE = TextDelta(text="x" * 100_000)
MAX_PIECES = 1_000
"""100 MB: far more than all buffers together hold."""


@contextlib.asynccontextmanager
async def street(folder: Path, **settings: Any) -> AsyncIterator[tuple[Door, Wire]]:
    """A gateway on loopback over a replica behind a Unix socket."""
    async with wire(folder / "s") as both, on_loopback(both.replica, **settings) as door:
        yield door, both


class DeafClient:
    """Sends a request and reads nothing of the answer until it is told to."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    @classmethod
    async def ask(cls, door: Door) -> DeafClient:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        url = httpx.URL(door.url)
        await loop.sock_connect(connection, (url.host, url.port))
        raw = json.dumps(STREAM).encode()
        head = (
            f"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: {KEY}\r\nconnection: close\r\n"
            f"content-length: {len(raw)}\r\n\r\n"
        )
        await loop.sock_sendall(connection, head.encode() + raw)
        return cls(connection)

    async def read_everything(self) -> bytes:
        loop = asyncio.get_running_loop()
        pieces: list[bytes] = []
        while piece := await loop.sock_recv(self._connection, 1 << 20):
            pieces.append(piece)
        return b"".join(pieces)

    def leave(self) -> None:
        self._connection.close()


async def say_until_it_is_not_taken(teller: ScriptedAnswer) -> int:
    """Pieces until the backend is not asked for more; returns how many were said."""
    for num_said in range(MAX_PIECES):
        num_taken = teller.num_taken
        teller.say(PIECE)
        for _ in range(50):
            if teller.num_taken > num_taken:
                break
            await asyncio.sleep(0.001)  # sockets give no event that nothing will come
        else:
            return num_said + 1
    raise AssertionError("everything was taken, though nobody reads")


@pytest.fixture
def _quick_pull_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keepwarm.contract.pulled_turn._MAX_UNREAD_EVENTS", 16)


@pytest.mark.usefixtures("_quick_pull_limit")
async def test_a_deaf_client_stops_its_own_backend_and_the_others_go_on(tmp_path: Path) -> None:
    async with street(tmp_path) as (door, both), door.client() as client:
        deaf = await DeafClient.ask(door)
        teller = await both.behind.next_answer()
        teller.say(*opening())
        num_said = await say_until_it_is_not_taken(teller)
        both.behind.script = lambda _: said("Hello")
        for _ in range(5):
            response = await client.post("/v1/messages", json=STREAM)
            assert b"message_stop" in response.content
        both.behind.script = None
        teller.say(finished())
        raw = await deaf.read_everything()  # it wakes up, and has missed nothing
        assert raw.count(b"x" * 100_000) == num_said
        assert raw.count(b"event: message_stop") == 1
        deaf.leave()


@pytest.mark.usefixtures("_quick_pull_limit")
async def test_a_deaf_client_that_leaves_ends_its_paused_turn(tmp_path: Path) -> None:
    async with street(tmp_path) as (door, both):
        deaf = await DeafClient.ask(door)
        teller = await both.behind.next_answer()
        teller.say(*opening())
        await say_until_it_is_not_taken(teller)
        deaf.leave()
        async with asyncio.timeout(LIMIT_S):
            await teller.closed.wait()


@pytest.mark.usefixtures("_quick_pull_limit")
async def test_a_client_that_stays_deaf_is_given_up(tmp_path: Path) -> None:
    async with street(tmp_path, send_stall_s=0.3) as (door, both):
        deaf = await DeafClient.ask(door)
        teller = await both.behind.next_answer()
        teller.say(*opening())
        with contextlib.suppress(AssertionError):
            await say_until_it_is_not_taken(teller)
        async with asyncio.timeout(LIMIT_S):
            await teller.closed.wait()
        deaf.leave()
