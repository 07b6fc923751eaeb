"""What a front hears of host memory: from a real `keepwarm hostcache`, and from one in pieces."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any

from keepwarm.backend.cache_journal import CacheJournal
from keepwarm.backend.host_feed import HostFeed
from keepwarm.backend.host_link import observe
from keepwarm.backend.host_messages import DiskStatus, HostStatus, Told
from keepwarm.backend.host_observer import DiskView
from keepwarm.cache.told_index import ToldIndex
from keepwarm.core.host_tier import HostTierLost
from keepwarm.core.ids import BlockHash
from keepwarm.core.rank_messages import CacheEvent
from tests.backend.hostcaches import named, running_hostcache, store
from tests.backend.ports import PATIENCE_S

STATUS = HostStatus(
    budget_bytes=1,
    slot_bytes=1,
    ranks=(0,),
    off_reason=None,
    num_slots=10,
    num_writing=1,
    num_leased=2,
    num_cached=3,
    num_empty=4,
    num_found_total=0,
    num_not_found_total=0,
    num_stored_total=0,
    num_evicted_total=0,
    num_dropped_total=0,
    num_refused_total=5,
    num_reclaimed_total=0,
    record_bytes=0,
)


class Watcher:
    """A `HostWatcher` that keeps an index."""

    def __init__(self) -> None:
        self.index = ToldIndex()
        self.calls: list[str] = []
        self._changed = asyncio.Event()

    def host_on(self, contents: Iterable[CacheEvent]) -> None:
        self.index.clear()
        self._take("on", contents)

    def host_changed(self, events: Sequence[CacheEvent]) -> None:
        self._take("changed", events)

    def host_off(self, reason: str) -> None:
        self.index.clear()
        self._take(f"off: {reason}", ())

    def _take(self, call: str, events: Iterable[CacheEvent]) -> None:
        self.calls.append(call)
        for event in events:
            self.index.take(event)
        self._changed.set()

    def has_heard(self, last_call: str) -> bool:
        return bool(self.calls) and self.calls[-1].startswith(last_call)

    async def until_it_holds(self, names: set[BlockHash], last_call: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while set(self.index.names) != names or not self.has_heard(last_call):
                self._changed.clear()
                await self._changed.wait()


@contextlib.asynccontextmanager
async def heard(feed: HostFeed) -> AsyncIterator[Watcher]:
    watcher = Watcher()
    feed.watch(watcher)
    running = asyncio.create_task(feed.run())
    try:
        yield watcher
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_what_ranks_store_is_heard_and_so_is_the_keeper_s_end(tmp_path: Path) -> None:
    with running_hostcache(tmp_path) as hostcache, contextlib.closing(hostcache.attach()) as rank:
        await asyncio.to_thread(store, rank, "ab")
        async with heard(HostFeed(lambda: observe(hostcache.socket_path), retry_s=0.01)) as watcher:
            await watcher.until_it_holds(set(named("ab")), "on")
            await asyncio.to_thread(store, rank, "abcd")
            await watcher.until_it_holds(set(named("abcd")), "changed")
            hostcache.process.kill()
            await watcher.until_it_holds(set(), "off: ")


class Keeper:
    """Says what a test says, one observation after another."""

    def __init__(self, *observations: Sequence[Told | str]) -> None:
        self._observations = iter(observations)

    async def observe(self) -> AsyncIterator[Told]:
        for told in next(self._observations, ()):
            if isinstance(told, str):
                raise HostTierLost(told)
            yield told
        await asyncio.Event().wait()


def told(path: str, *, is_whole: bool = False, **status: Any) -> Told:
    names = b"".join(named(path))
    event = CacheEvent(kind="stored", tier="l1", names=names, parent=b"")
    changed = {name: getattr(STATUS, name) for name in STATUS.__struct_fields__} | status
    return Told(is_whole=is_whole, events=(event,) if path else (), status=HostStatus(**changed))


async def test_a_keeper_that_comes_back_tells_the_whole_anew() -> None:
    keeper = Keeper([told("ab", is_whole=True), "gone"], [told("xyz", is_whole=True), told("q")])
    async with heard(HostFeed(keeper.observe, retry_s=0.0)) as watcher:
        await watcher.until_it_holds({*named("xyz"), *named("q")}, "changed")
    assert watcher.calls == ["on", "off: gone", "on", "changed"]


async def test_a_tier_that_is_switched_off_is_told_so_once_and_holds_nothing() -> None:
    off = told("", off_reason="a checksum did not match", num_cached=0)
    keeper = Keeper([told("ab", is_whole=True), off, off])
    feed = HostFeed(keeper.observe)
    async with heard(feed) as watcher:
        await watcher.until_it_holds(set(), "off: a checksum did not match")
        await asyncio.sleep(0)
    assert watcher.calls == ["on", "off: a checksum did not match"]
    assert feed.view is not None
    assert feed.view.off_reason == "a checksum did not match"


async def test_its_blocks_are_known_by_state_while_it_is_there() -> None:
    keeper = Keeper([told("ab", is_whole=True)], [])
    feed = HostFeed(keeper.observe)
    assert feed.view is None
    async with heard(feed) as watcher:
        await watcher.until_it_holds(set(named("ab")), "on")
        assert feed.view is not None
        assert dict(feed.view.blocks) == {"writing": 1, "leased": 2, "cached": 3, "empty": 4}
        assert feed.view.refused_blocks_total == 5
        assert feed.view.disk is None
    lost = HostFeed(Keeper([told("ab", is_whole=True), "gone"]).observe)
    async with heard(lost) as watcher:
        await watcher.until_it_holds(set(), "off: gone")
        assert lost.view is None


async def test_the_disk_below_it_is_seen_too() -> None:
    disk = DiskStatus(
        budget_bytes=9,
        off_reason=None,
        num_blocks=1,
        num_bytes=2,
        num_read_total=3,
        num_written_total=4,
        num_damaged_total=5,
    )
    feed = HostFeed(Keeper([told("ab", is_whole=True, disk=disk)]).observe)
    async with heard(feed) as watcher:
        await watcher.until_it_holds(set(named("ab")), "on")
    assert feed.view is not None
    assert feed.view.disk == DiskView(
        off_reason=None,
        num_blocks=1,
        num_bytes=2,
        budget_bytes=9,
        read_blocks_total=3,
        written_blocks_total=4,
        damaged_blocks_total=5,
    )


async def test_what_was_there_before_the_front_is_not_counted_as_a_change() -> None:
    journal = CacheJournal(model="smol")
    feed = HostFeed(Keeper([told("ab", is_whole=True), told("abc")]).observe)
    feed.watch(journal)
    async with heard(feed) as watcher:
        await watcher.until_it_holds(set(named("abc")), "changed")
    assert sum(journal.changes.values()) == 3
