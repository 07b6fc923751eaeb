"""Many streams over one server with the scripted engine: clients that leave, a front that is killed,
a shutdown. Every stream that stays ends exactly once; nothing that left holds anything."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.served import STOP_LIMIT_S, Served, eventually, serve

OPTIONS = ("--engine", "scripted", "--script-step-ms", "20", "--max-num-seqs", "64", "--device-cache-gb", "1")
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("scripted"), *OPTIONS) as server:
        yield server


class Stream:
    """One request on a socket of its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.raw = b""

    @classmethod
    async def open(cls, served: Served, number: int, *, max_tokens: int = 2_000) -> Stream:
        url = httpx.URL(served.url)
        reader, writer = await asyncio.open_connection(url.host, url.port)
        messages = [{"role": "user", "content": f"Speak, number {number}."}]
        body = json.dumps(
            {"model": "default", "max_tokens": max_tokens, "stream": True, "messages": messages}
        ).encode()
        head = (
            f"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: {served.key}\r\nconnection: close\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        return cls(reader, writer)

    async def until(self, wanted: bytes) -> Stream:
        async with asyncio.timeout(LIMIT_S):
            while wanted not in self.raw and (piece := await self.reader.read(1 << 16)):
                self.raw += piece
        return self

    async def to_the_end(self) -> Stream:
        async with asyncio.timeout(LIMIT_S):
            while piece := await self.reader.read(1 << 16):
                self.raw += piece
        self.writer.close()
        return self

    @property
    def ends(self) -> list[bytes]:
        """Its terminal events."""
        events = [line for line in self.raw.split(b"\n") if line.startswith(b"event: ")]
        return [event for event in events if event in (b"event: message_stop", b"event: error")]

    def leave(self) -> None:
        self.writer.transport.abort()


async def until_nothing_is_held(served: Served) -> None:
    def is_so() -> bool:
        return served.metric("keepwarm_backend_requests_open") == 0 and served.held_blocks() == 0

    await asyncio.to_thread(eventually, is_so)


async def test_some_clients_leave_and_the_others_hear_everything(scripted: Served) -> None:
    rng = random.Random(1)

    async def one(number: int) -> None:
        stream = await Stream.open(scripted, number, max_tokens=100)
        if number % 3:
            await stream.to_the_end()
            assert stream.ends == [b"event: message_stop"]
            return
        await stream.until(rng.choice((b"HTTP/1.1", b"message_start", b"content_block_delta")))
        stream.leave()

    async with asyncio.TaskGroup() as group:
        for number in range(60):
            group.create_task(one(number))
    await until_nothing_is_held(scripted)


async def test_a_client_that_closes_its_half_has_left(scripted: Served) -> None:
    stream = await (await Stream.open(scripted, 1)).until(b"content_block_delta")
    stream.writer.write_eof()
    await stream.to_the_end()
    assert b"event: error" not in stream.raw
    await until_nothing_is_held(scripted)


async def test_a_client_that_never_reads_holds_nobody_up(scripted: Served) -> None:
    silent = [await Stream.open(scripted, 100 + number) for number in range(5)]
    for stream in silent:
        stream.writer.transport.pause_reading()  # type: ignore[attr-defined]
    others = [await Stream.open(scripted, number, max_tokens=60) for number in range(20)]
    heard = await asyncio.gather(*(stream.to_the_end() for stream in others))
    assert all(stream.ends == [b"event: message_stop"] for stream in heard)
    for stream in silent:
        stream.leave()
    await until_nothing_is_held(scripted)


async def test_a_killed_front_ends_every_open_stream_once(tmp_path: Path) -> None:
    with serve(tmp_path, *OPTIONS) as server:
        streams = [await Stream.open(server, number) for number in range(30)]
        await asyncio.gather(*(stream.until(b"content_block_delta") for stream in streams))
        os.kill(server.front_pid(), signal.SIGKILL)
        await asyncio.gather(*(stream.to_the_end() for stream in streams))
        assert all(len(stream.ends) == 1 for stream in streams)
        failed = [stream for stream in streams if stream.ends == [b"event: error"]]
        assert failed
        assert all(b"the backend went away" in stream.raw for stream in failed)
        await asyncio.to_thread(eventually, lambda: is_ready(server), limit_s=60)
        again = await (await Stream.open(server, 1, max_tokens=20)).to_the_end()
        assert again.ends == [b"event: message_stop"]


def is_ready(server: Served) -> bool:
    return httpx.get(f"{server.url}/readyz").status_code == 200


async def test_a_stopped_server_lets_streams_end_or_ends_them_once(tmp_path: Path) -> None:
    with serve(tmp_path, *OPTIONS, "--drain-timeout-s", "1") as server:
        streams = [
            await Stream.open(server, number, max_tokens=20 + 400 * (number % 2)) for number in range(20)
        ]
        await asyncio.gather(*(stream.until(b"content_block_delta") for stream in streams))
        os.kill(server.process.pid, signal.SIGTERM)
        await asyncio.gather(*(stream.to_the_end() for stream in streams))
        assert all(len(stream.ends) == 1 for stream in streams)
        assert await asyncio.to_thread(server.process.wait, STOP_LIMIT_S) == 0
