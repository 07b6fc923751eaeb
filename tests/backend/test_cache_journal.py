"""The journal: what readers of `/events` are told, and what is counted for the metrics."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

import pytest

from keepwarm.backend.cache_journal import CacheJournal
from keepwarm.backend.journal_reader import JournalReader
from keepwarm.core.errors import Overloaded
from keepwarm.core.hashing import BlockHasher, join_hashes
from keepwarm.core.ids import BlockHash, token_ids
from keepwarm.core.rank_messages import CacheEvent, Ready
from tests.backend.events_reader import EventsReader, Place
from tests.backend.ports import PATIENCE_S

ROOT = BlockHash(b"r" * 16)
HASHER = BlockHasher(key=bytes(32), block_size=1)
READY = Ready(
    num_blocks=100,
    block_size=16,
    bytes_per_block=1,
    max_num_seqs=1,
    max_model_len=100,
    vocab_size=256,
    description="",
)
Tier = Literal["l0", "l1", "disk"]


def names_of(*path: int) -> list[BlockHash]:
    return HASHER.extend(ROOT, token_ids(list(path)))


def stored(*path: int, tier: Tier = "l0", since: int = 0, reason: str = "computed") -> CacheEvent:
    names = names_of(*path)
    parent = names[since - 1] if since else ROOT
    return CacheEvent(
        kind="stored", tier=tier, names=join_hashes(names[since:]), parent=parent, reason=reason
    )


def evicted(*names: BlockHash, tier: Tier = "l0", reason: str = "room") -> CacheEvent:
    return CacheEvent(kind="evicted", tier=tier, names=join_hashes(names), reason=reason)


def journal(**limits: int) -> CacheJournal:
    made = CacheJournal(model="smol", **limits)
    made.rank_serves(0, READY)
    return made


async def catch_up(feed: JournalReader, reader: EventsReader, num_lines: int) -> None:
    """Read on until so many lines have come."""
    async with asyncio.timeout(PATIENCE_S):
        while len(reader.lines) < num_lines:
            reader.feed(await feed.next())


async def test_a_reader_hears_what_is_there_and_then_what_changes() -> None:
    told, reader = journal(), EventsReader()
    told.cache_changed(0, [stored(1, 2)])
    feed = told.read()
    told.cache_changed(0, [stored(1, 2, 3, since=2), evicted(names_of(1, 2, 3)[-1])])
    await catch_up(feed, reader, 6)
    assert [line["event"] for line in reader.lines] == [
        "begin",
        "rank",
        "stored",
        "live",
        "stored",
        "evicted",
    ]
    begin, rank, there, _, added, gone = reader.lines
    one, two, three = (name.hex() for name in names_of(1, 2, 3))
    assert begin == {"event": "begin", "format": 1, "model": "smol"}
    assert rank == {"event": "rank", "rank": 0, "state": "serving", "num_blocks": 100, "block_size": 16}
    assert there == {
        "event": "stored",
        "tier": "l0",
        "rank": 0,
        "parent": ROOT.hex(),
        "names": [one, two],
        "reason": "there",
    }
    assert (added["parent"], added["names"], added["reason"]) == (two, [three], "computed")
    assert gone == {"event": "evicted", "tier": "l0", "rank": 0, "names": [three], "reason": "room"}


async def test_a_lost_rank_holds_nothing_and_the_others_what_they_held() -> None:
    told, reader = journal(), EventsReader()
    told.rank_serves(1, READY)
    told.cache_changed(0, [stored(1, 2)])
    told.cache_changed(1, [stored(3)])
    feed = told.read()
    told.rank_lost(0)
    told.rank_serves(0, READY)
    told.cache_changed(0, [stored(4)])
    await catch_up(feed, reader, 9)
    assert reader.names(0, "l0") == set(names_of(4))
    assert reader.names(1, "l0") == set(names_of(3))
    assert told.changes[0, "l0", "evicted", "lost"] == 2
    late = EventsReader()
    await catch_up(told.read(), late, 6)
    assert [late.names(rank, "l0") for rank in (0, 1)] == [reader.names(rank, "l0") for rank in (0, 1)]


async def test_host_memory_is_told_by_its_keeper_and_not_by_the_ranks() -> None:
    told, reader = journal(), EventsReader()
    feed = told.read()
    told.host_on([stored(1, 2, tier="l1")])
    told.host_changed([stored(1, 2, 3, since=2, tier="l1", reason="demoted"), stored(9, tier="disk")])
    told.cache_changed(0, [stored(7, tier="l1"), stored(8)])
    await catch_up(feed, reader, 8)
    assert reader.names(None, "l1") == set(names_of(1, 2, 3))
    assert reader.names(None, "disk") == set(names_of(9))
    assert reader.names(0, "l0") == set(names_of(8))
    assert told.changes[None, "l1", "stored", "demoted"] == 1
    assert sum(count for (_, tier, *_), count in told.changes.items() if tier == "l1") == 1
    told.host_off("a checksum did not match")
    await catch_up(feed, reader, 9)
    assert reader.names(None, "l1") == reader.names(None, "disk") == set()
    assert reader.lines[-1] == {"event": "host", "state": "off", "reason": "a checksum did not match"}


async def test_a_reader_that_does_not_keep_up_is_dropped_with_a_last_line_and_nobody_else_is() -> None:
    told = journal(max_unread_bytes=500)
    slow, quick = told.read(), told.read()
    slow_reader, quick_reader = EventsReader(), EventsReader()
    for number in range(20):
        told.cache_changed(0, [stored(number)])
        await catch_up(quick, quick_reader, 4 + number)
    slow_reader.feed(await slow.next())
    assert slow_reader.end_reason == "dropped: more than 500 bytes were not read in time"
    assert await slow.next() == b""
    assert len(quick_reader.names(0, "l0")) == 20


async def test_no_more_than_a_few_may_read_and_those_that_left_make_room() -> None:
    told = journal()
    feeds = [told.read() for _ in range(8)]
    with pytest.raises(Overloaded, match="8 readers"):
        told.read()
    feeds[0].close("the reader left")
    told.read()


async def test_a_feed_that_is_closed_says_why_and_nothing_after() -> None:
    told, reader = journal(), EventsReader()
    feed = told.read()
    await catch_up(feed, reader, 3)
    waiting = asyncio.create_task(feed.next())
    await asyncio.sleep(0)
    feed.close("the backend is shutting down")
    feed.close("another reason")
    told.cache_changed(0, [stored(1)])
    reader.feed(await waiting)
    assert reader.end_reason == "the backend is shutting down"
    assert await feed.next() == b""


class Replica:
    """Tiers that change at random, and what each of them holds."""

    def __init__(self, told: CacheJournal, seed: int) -> None:
        self.told = told
        self.random = random.Random(seed)
        self.held: defaultdict[Place, dict[BlockHash, BlockHash]] = defaultdict(dict)
        for rank in range(3):
            told.rank_serves(rank, READY)
        told.host_on([])

    def change(self) -> None:
        place: Place = self.random.choice([(0, "l0"), (1, "l0"), (2, "l0"), (None, "l1"), (None, "disk")])
        match self.random.random():
            case chance if chance < 0.02:
                self.lose(place)
            case chance if chance < 0.7:
                self.store(place)
            case _:
                self.evict(place)

    def lose(self, place: Place) -> None:
        rank, _ = place
        if rank is not None:
            self.told.rank_lost(rank)
            self.told.rank_serves(rank, READY)
            self.held[place].clear()
            return
        self.told.host_off("gone")
        self.held[None, "disk"].clear()
        kept = list(self.held[None, "l1"].items())
        tier: Tier = "l1"
        events = [CacheEvent(kind="stored", tier=tier, names=name, parent=parent) for name, parent in kept]
        self.told.host_on(events)

    def store(self, place: Place) -> None:
        path = [self.random.randrange(3) for _ in range(self.random.randint(1, 8))]
        names, held = names_of(*path), self.held[place]
        new = [name for name in names if name not in held]
        if not new:
            return
        since = len(names) - len(new)
        parent = names[since - 1] if since else ROOT
        held.update(zip(new, [parent, *new], strict=False))
        self.tell(place, "stored", new, parent)

    def evict(self, place: Place) -> None:
        held = self.held[place]
        leaves = [name for name in held if name not in held.values()]
        gone = self.random.sample(leaves, k=min(len(leaves), 2))
        for name in gone:
            del held[name]
        if gone:
            self.tell(place, "evicted", gone, BlockHash(b""))

    def tell(
        self, place: Place, kind: Literal["stored", "evicted"], names: Sequence[BlockHash], parent: BlockHash
    ) -> None:
        rank, tier = place
        assert tier in ("l0", "l1", "disk")
        event = CacheEvent(kind=kind, tier=tier, names=join_hashes(names), parent=parent, reason="x")  # type: ignore[arg-type]
        if rank is None:
            self.told.host_changed([event])
        else:
            self.told.cache_changed(rank, [event])


@pytest.mark.parametrize("seed", range(20))
async def test_whoever_reads_from_whenever_rebuilds_each_tier(seed: int) -> None:
    told = CacheJournal(model="smol")
    replica = Replica(told, seed)
    readers: list[EventsReader] = []
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as reading:
        for number in range(300):
            if number % 50 == 25:
                readers.append(EventsReader())
                reading.create_task(read_until_the_last_change(told.read(), readers[-1]))
            replica.change()
            if replica.random.random() < 0.3:
                await asyncio.sleep(0)  # some read on
        told.rank_lost(LAST)
    for reader in readers:
        assert reader.is_live
        for place, held in replica.held.items():
            assert reader.names(*place) == set(held), place


LAST = 99
"""A rank that is lost last of all."""


async def read_until_the_last_change(feed: JournalReader, reader: EventsReader) -> None:
    while reader.lines[-1:] != [
        {"event": "rank", "rank": LAST, "state": "lost", "num_blocks": 0, "block_size": 0}
    ]:
        reader.feed(await feed.next())
        await asyncio.sleep(0)
