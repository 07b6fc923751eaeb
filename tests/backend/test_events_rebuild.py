"""Whoever reads the events rebuilds the index of each rank and of host memory, name by name.

Real schedulers over real caches of two tiers, under load that evicts, in virtual time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import pytest

from keepwarm.backend.cache_journal import CacheJournal
from keepwarm.backend.journal_reader import JournalReader
from keepwarm.cache.told_index import ToldIndex
from keepwarm.core.ids import BlockHash, RequestId
from keepwarm.core.rank_messages import Ready
from tests.backend.events_reader import EventsReader
from tests.backend.ports import PATIENCE_S
from tests.sched.driver import BLOCK_SIZE, Rank, make_limits
from tests.sched.tiers import Host, tier_of

NUM_BLOCKS = 32
NUM_SLOTS = 48
NUM_SESSIONS = 8
NUM_SEEDS = 10
MAX_TOKENS = 80
READY = Ready(
    num_blocks=NUM_BLOCKS,
    block_size=BLOCK_SIZE,
    bytes_per_block=1,
    max_num_seqs=4,
    max_model_len=128,
    vocab_size=32,
    description="",
)


class Replica:
    """Two ranks over one host memory, and the front's journal of both."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.told = CacheJournal(model="scripted")
        self.host = Host(num_slots=NUM_SLOTS, limits=make_limits(num_blocks=NUM_BLOCKS))
        self.sessions = [[session % 4, *range(8, 20), session] for session in range(NUM_SESSIONS)]
        self.ranks: list[Rank] = []
        self.num_turns = 0
        self.told.host_on([])
        for rank in range(2):
            self.ranks.append(self.host.rank())
            self.told.rank_serves(rank, READY)

    def change(self) -> None:
        """A turn comes, goes or moves on, or a rank dies."""
        number = self.random.randrange(2)
        match self.random.random():
            case chance if chance < 0.3:
                self.ask(self.ranks[number])
            case chance if chance < 0.35:
                name = RequestId(f"r{self.random.randrange(self.num_turns + 1)}")
                self.ranks[number].scheduler.abort(name)
            case chance if chance < 0.36:
                self.restart(number)
            case _:
                self.ranks[number].step()
        self.hear()

    def ask(self, rank: Rank) -> None:
        session = self.random.choice(self.sessions)
        if len(session) > MAX_TOKENS:
            del session[14:]
        session += [self.random.randrange(8, 30) for _ in range(self.random.randint(1, 12))]
        self.num_turns += 1
        use_cache = self.random.random() < 0.95
        rank.submit(f"r{self.num_turns}", session, max_output_tokens=8, use_cache=use_cache)

    def restart(self, number: int) -> None:
        """What was in its memory is gone; what it had half written in host memory is given up."""
        dead = self.ranks[number]
        self.hear()
        self.host.index.release_owner(tier_of(dead).owner)
        self.ranks[number] = self.host.rank()
        self.told.rank_lost(number)
        self.told.rank_serves(number, READY)

    def hear(self) -> None:
        """As the front hears: of each rank's step, and of host memory."""
        for number, rank in enumerate(self.ranks):
            rank._hear()
            events, rank.cache_events = rank.cache_events, []
            self.told.cache_changed(number, events)
        self.told.host_changed(self.host.index.take_events())

    def finish(self) -> None:
        for rank in self.ranks:
            rank.run()
        self.hear()

    def l0(self, number: int) -> set[BlockHash]:
        return names_in(self.ranks[number].scheduler.cache.runs())

    def l1(self) -> set[BlockHash]:
        index = ToldIndex()
        for event in self.host.index.contents():
            index.take(event)
        return set(index.names)


def names_in(runs: Iterator[tuple[BlockHash | None, list[BlockHash]]]) -> set[BlockHash]:
    return {name for _parent, names in runs for name in names}


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
async def test_indexes_rebuilt_from_events_are_those_of_the_caches(seed: int) -> None:
    replica = Replica(seed)
    readers: list[EventsReader] = []
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as reading:
        for number in range(600):
            if number % 200 == 0:  # one from the first, the others when much is there already
                readers.append(EventsReader())
                reading.create_task(read_until_the_last_change(replica.told.read(), readers[-1]))
                await asyncio.sleep(0)
            replica.change()
        replica.finish()
        replica.told.rank_lost(LAST)
    for reader in readers:
        assert [reader.names(number, "l0") for number in (0, 1)] == [replica.l0(0), replica.l0(1)]
        assert reader.names(None, "l1") == replica.l1()
    assert replica.l1()
    replica.host.check_at_rest()


async def test_the_load_of_this_test_does_all_that_can_happen_to_blocks() -> None:
    changes: set[tuple[str, str, str]] = set()
    for seed in range(NUM_SEEDS):
        replica = Replica(seed)
        for _ in range(600):
            replica.change()
        replica.finish()
        changes |= {(tier, kind, reason) for _, tier, kind, reason in replica.told.changes}
    assert changes >= {
        ("l0", "stored", "computed"),
        ("l0", "stored", "promoted"),
        ("l0", "evicted", "room"),
        ("l0", "evicted", "lost"),
        ("l1", "stored", "demoted"),
        ("l1", "evicted", "room"),
    }


LAST = 99
"""A rank that is lost last of all."""


async def read_until_the_last_change(feed: JournalReader, reader: EventsReader) -> None:
    while not any(line.get("rank") == LAST for line in reader.lines[-1:]):
        reader.feed(await feed.next())
        await asyncio.sleep(0)
