"""Events of rank processes: what each holds, and that one that is killed holds nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable

import pytest

from keepwarm.backend.cache_journal import CacheJournal
from keepwarm.backend.journal_reader import JournalReader
from keepwarm.backend.rank_group import RankGroup
from keepwarm.backend.rank_process import RankProcess
from keepwarm.core.hashing import BlockHasher, join_hashes
from keepwarm.core.ids import BlockHash, RequestId, token_ids
from keepwarm.core.rank_messages import Submit
from keepwarm.core.sampling import GREEDY
from tests.backend.events_reader import EventsReader
from tests.backend.ports import KEY, PATIENCE_S, Ear, rank_process

BLOCK_SIZE = 16
ROOT = BlockHash(b"r" * 16)


def named_turn(first: int, *, num_blocks: int) -> tuple[Submit, list[BlockHash]]:
    """A turn whose prompt begins with this token, and the names of its full blocks."""
    tokens = token_ids([first] * (num_blocks * BLOCK_SIZE + 1))
    names = BlockHasher(key=KEY, block_size=BLOCK_SIZE).extend(ROOT, tokens)
    submit = Submit(
        request_id=RequestId(f"from {first}"),
        tokens=tokens.tobytes(),
        block_hashes=join_hashes(names),
        root=ROOT,
        max_output_tokens=4,
        stop_tokens=(),
        sampling=GREEDY,
    )
    return submit, names


class Watched:
    """Two rank processes, the journal of them, and one reader."""

    def __init__(self) -> None:
        self.ranks = [rank_process(rank, ranks=2) for rank in range(2)]
        self.group = RankGroup(self.ranks)
        self.journal = CacheJournal(model="scripted")
        self.group.watch(self.journal)
        self.reader = EventsReader()
        self._feed: JournalReader = self.journal.read()

    async def ask(self, rank: RankProcess, first: int, num_blocks: int) -> set[BlockHash]:
        """A turn to its end; the names of its prompt."""
        submit, names = named_turn(first, num_blocks=num_blocks)
        ear = Ear()
        rank.submit(submit, ear)
        assert (await ear.end()).reason == "length"
        return set(names)

    async def read_until(self, is_so: Callable[[EventsReader], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not is_so(self.reader):
                self.reader.feed(await self._feed.next())


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    made = Watched()
    await made.group.start()
    yield made
    await made.group.close()


def kill(rank: RankProcess) -> None:
    assert rank.pid is not None
    os.kill(rank.pid, signal.SIGKILL)


async def test_each_process_is_told_by_itself_and_a_killed_one_begins_empty(watched: Watched) -> None:
    first, second = watched.ranks
    on_first = await watched.ask(first, 1, 20)
    on_second = await watched.ask(second, 2, 30)
    await watched.read_until(lambda reader: reader.names(1, "l0") == on_second)
    assert watched.reader.names(0, "l0") == on_first

    kill(second)
    await watched.read_until(lambda reader: reader.states(1)[-2:] == ["lost", "serving"])
    assert watched.reader.names(1, "l0") == set()
    assert watched.reader.names(0, "l0") == on_first
    assert watched.journal.changes[1, "l0", "evicted", "lost"] == 30

    again = await watched.ask(second, 3, 10)
    await watched.read_until(lambda reader: reader.names(1, "l0") == again)
