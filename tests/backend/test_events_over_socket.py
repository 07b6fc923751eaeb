"""`/events` of a whole backend, over its Unix socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from keepwarm.backend.cache_journal import CacheJournal
from keepwarm.backend.in_process_rank import InProcessRank
from keepwarm.backend.journal_reader import JournalReader
from keepwarm.backend.native import CacheNaming, NativeBackend
from keepwarm.backend.scripted_words import ByteWords
from keepwarm.chat.events import Finished
from keepwarm.chat.messages import Chat, Message, Text
from keepwarm.chat.request import ChatRequest
from keepwarm.contract.runtime import BackendApp
from keepwarm.core.hashing import BlockHasher, join_hashes
from keepwarm.core.ids import BlockHash, RequestId, TenantId, token_ids
from keepwarm.core.rank_messages import CacheEvent
from keepwarm.core.sampling import GREEDY
from keepwarm.sched.scheduler import Scheduler
from tests.backend.events_reader import EventsReader
from tests.backend.ports import KEY, PATIENCE_S, in_process_rank, scripted_settings
from tests.contract.fake_backend import FakeBackend
from tests.gateway.sockets import listening

ROOT = BlockHash(b"r" * 16)
NAMES = BlockHasher(key=KEY, block_size=1).extend(ROOT, token_ids(range(50)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A backend on its socket."""

    app: BackendApp
    backend: NativeBackend
    rank: InProcessRank
    socket_path: Path
    asked: list[str] = field(default_factory=list)

    async def ask(self, text: str) -> None:
        """A turn, to its end."""
        chat = Chat(messages=(Message(role="user", parts=(Text(text=text),)),))
        self.asked.append(text)
        request = ChatRequest(
            request_id=RequestId(f"r{len(self.asked)}"),
            tenant=TenantId("t"),
            chat=chat,
            max_output_tokens=40,
            sampling=GREEDY,
        )
        async with asyncio.timeout(PATIENCE_S):
            events = [event async for event in self.backend.chat(request)]
        assert isinstance(events[-1], Finished)

    def own_names(self) -> set[BlockHash]:
        """Of the rank's cache, from within."""
        scheduler = self.rank._engine._scheduler
        assert isinstance(scheduler, Scheduler)
        return {name for _parent, names in scheduler.cache.runs() for name in names}

    def change(self, *events: CacheEvent) -> None:
        """As if a step of the rank had done it."""
        self.rank._watchers.cache_changed(events)


@contextlib.asynccontextmanager
async def reading(socket_path: Path) -> AsyncIterator[httpx.Response]:
    transport = httpx.AsyncHTTPTransport(uds=str(socket_path))
    async with (
        asyncio.timeout(PATIENCE_S),
        httpx.AsyncClient(transport=transport, base_url="http://backend", timeout=None) as client,
        client.stream("GET", "/events") as response,
    ):
        yield response


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    rank = in_process_rank()
    backend = NativeBackend(
        scripted_settings(),
        rank=rank,
        load_words=ByteWords,
        naming=CacheNaming(key=KEY, model_identity=b"scripted"),
    )
    await backend.setup()
    app = BackendApp(backend)
    app.refusal = None
    async with listening(app, tmp_path / "backend.sock"):
        yield Served(app=app, backend=backend, rank=rank, socket_path=tmp_path / "backend.sock")
        app.end_channels()
    await backend.close()


def stored(names: list[BlockHash]) -> CacheEvent:
    return CacheEvent(kind="stored", tier="l0", names=join_hashes(names), parent=ROOT, reason="computed")


async def test_turns_are_told_as_the_rank_s_own_cache_has_them(served: Served) -> None:
    reader = EventsReader()
    await served.ask("one " * 100)
    async with reading(served.socket_path) as response:
        pieces = response.aiter_bytes()
        while not reader.is_live:
            reader.feed(await anext(pieces))
        assert len(reader.names(0, "l0")) > 20
        await served.ask("one " * 100 + "two " * 100)
        await served.ask("three " * 100)
        own = served.own_names()
        while not reader.names(0, "l0") >= own:
            reader.feed(await anext(pieces))
    assert reader.names(0, "l0") == own


async def test_a_reader_rebuilds_the_index_and_hears_the_end(served: Served) -> None:
    served.change(stored(NAMES[:30]))
    reader = EventsReader()
    async with reading(served.socket_path) as response:
        assert response.headers["content-type"] == "application/x-ndjson"
        async for piece in response.aiter_bytes():
            is_first_live = reader.is_live
            reader.feed(piece)
            if reader.is_live and not is_first_live:
                served.change(stored(NAMES), CacheEvent(kind="evicted", tier="l0", names=NAMES[49]))
            if len(reader.names(0, "l0")) == 49:
                served.app.end_channels()
    assert reader.names(0, "l0") == set(NAMES[:49])
    assert reader.end_reason == "the backend is shutting down"


async def test_a_reader_that_does_not_keep_up_is_told_so_last_and_holds_nobody_up(tmp_path: Path) -> None:
    """More is told than the sockets between and the limit hold together."""
    backend = JournalBackend(CacheJournal(model="smol", max_unread_bytes=100_000))
    app, reader = BackendApp(backend), EventsReader()
    gone = CacheEvent(kind="evicted", tier="l0", names=join_hashes(NAMES))
    async with listening(app, tmp_path / "backend.sock"), reading(tmp_path / "backend.sock") as response:
        pieces = response.aiter_bytes()
        while not reader.is_live:
            reader.feed(await anext(pieces))
        num_told = 0
        while backend.is_read:
            backend.journal.cache_changed(0, [stored(NAMES), gone])
            num_told += 2
            await asyncio.sleep(0)
        async for piece in pieces:
            reader.feed(piece)
    assert reader.end_reason == "dropped: more than 100000 bytes were not read in time"
    assert len(reader.lines) < num_told


class JournalBackend(FakeBackend):
    """Tells what a journal is told."""

    def __init__(self, journal: CacheJournal) -> None:
        super().__init__()
        self.journal = journal

    @property
    def is_read(self) -> bool:
        return bool(self.journal._readers)

    def watch_events(self) -> JournalReader:
        return self.journal.read()


async def test_the_metrics_count_what_was_told(served: Served) -> None:
    served.change(stored(NAMES), CacheEvent(kind="evicted", tier="l0", names=NAMES[49], reason="room"))
    transport = httpx.AsyncHTTPTransport(uds=str(served.socket_path))
    async with httpx.AsyncClient(transport=transport, base_url="http://backend") as client:
        text = (await client.get("/metrics")).text
    assert 'keepwarm_stored_blocks_total{rank="0",reason="computed",tier="l0"} 50.0' in text
    assert 'keepwarm_evicted_blocks_total{rank="0",reason="room",tier="l0"} 1.0' in text
