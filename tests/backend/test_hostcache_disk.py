"""Host memory over a disk: real processes that end, die, and find what the last one left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from keepwarm.backend.disk_budget import look_up
from keepwarm.backend.host_client import HostClient
from keepwarm.backend.host_link import RecordsLink, observe
from keepwarm.backend.host_messages import DiskStatus
from keepwarm.backend.hostcache import HostCacheSettings
from keepwarm.core.hashing import BlockNames
from keepwarm.core.ids import BlockHash
from tests.backend.hostcaches import (
    END_LIMIT_S,
    GEOMETRY,
    SLOT_BYTES,
    RunningHostCache,
    content_of,
    named,
    read,
    running_hostcache,
    start_hostcache,
    store,
)

PATIENCE_S = 30.0
DISK_GB = 0.05


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """On a disk."""
    if (refusal := look_up(tmp_path).refusal()) is not None:
        pytest.skip(f"{tmp_path} lies on {refusal}")
    return tmp_path


def hostcache(
    folder: Path, *, idle_s: float = 1000.0, host_cache_gb: float = 0.001
) -> AbstractContextManager[RunningHostCache]:
    return running_hostcache(
        folder,
        host_cache_gb=host_cache_gb,
        disk_cache_gb=DISK_GB,
        disk_folder=str(folder / "disk-cache"),
        disk_idle_s=idle_s,
    )


@contextlib.contextmanager
def rank(cache: RunningHostCache) -> Iterator[HostClient]:
    with contextlib.closing(cache.attach()) as client:
        yield client


def brought_up(client: HostClient, path: str) -> tuple[int, int]:
    """As a rank admits a turn: wait for the disk; then how many blocks are there, how many from disk.
    Every one is right, byte for byte."""
    while client.prefetch(None, named(path)):  # the answer takes as long as another process needs
        pass
    lease = client.find(None, named(path))
    if lease is None:
        return 0, 0
    client.release(lease)
    assert read(client, path) == [content_of(name) for name in named(path)[: lease.num_present]]
    return lease.num_present, lease.num_from_disk


async def disk_status(cache: RunningHostCache) -> DiskStatus:
    """Once the folder is open, or will not be."""
    async with asyncio.timeout(PATIENCE_S), contextlib.aclosing(observe(cache.socket_path)) as told:
        async for one in told:
            disk = one.status.disk
            if disk is not None and disk.off_reason != "it is being opened":
                return disk
    raise AssertionError("the stream ended")


async def names_on_disk(cache: RunningHostCache, num_names: int) -> None:
    """Wait until those who listen have heard of so many blocks on disk."""
    there: set[BlockHash] = set()
    async with asyncio.timeout(PATIENCE_S), contextlib.aclosing(observe(cache.socket_path)) as told:
        async for one in told:
            if one.is_whole:
                there.clear()
            for event in one.events:
                if event.tier == "disk":
                    names = BlockNames(event.names)
                    there = there | {*names} if event.kind == "stored" else there - {*names}
            if len(there) == num_names:
                return


@pytest.mark.parametrize("ends", ["by SIGTERM", "with its parent"])
def test_a_clean_restart_finds_all_that_was_in_host_memory(folder: Path, ends: str) -> None:
    with hostcache(folder) as cache, rank(cache) as client:
        store(client, "abcdef")
        store(client, "abcxyz")
        assert brought_up(client, "abcdef") == (6, 0)
        if ends == "by SIGTERM":
            cache.process.send_signal(signal.SIGTERM)
            assert cache.process.wait(END_LIMIT_S) == 0
    with hostcache(folder) as cache, rank(cache) as client:
        assert brought_up(client, "abcdef") == (6, 6)
        assert brought_up(client, "abcdef") == (6, 0)
        assert brought_up(client, "abc") == (3, 0)
        assert brought_up(client, "abcxyz") == (6, 3)


async def test_what_was_idle_outlives_a_death_and_is_told(folder: Path) -> None:
    with hostcache(folder, idle_s=0.0) as cache, rank(cache) as client:
        store(client, "abcdef")
        await names_on_disk(cache, 6)
        cache.process.kill()
        cache.process.wait(END_LIMIT_S)
    with hostcache(folder) as cache, rank(cache) as client:
        await names_on_disk(cache, 6)
        assert brought_up(client, "abcdefgh") == (6, 6)
        status = await disk_status(cache)
        assert (status.num_blocks, status.num_read_total, status.off_reason) == (6, 6, None)


async def test_more_conversations_than_host_memory_holds_are_all_found(folder: Path) -> None:
    room_gb = 40 * (SLOT_BYTES + 8) / 1e9
    paths = [first + "bcdefghijklmnop" for first in "012345"]
    with hostcache(folder, host_cache_gb=room_gb, idle_s=0.0) as cache, rank(cache) as client:
        for number, path in enumerate(paths):
            store(client, path)
            await names_on_disk(cache, (number + 1) * len(path))
        for path in paths:
            assert brought_up(client, path)[0] == len(path)


async def test_records_come_back_too(folder: Path) -> None:
    with hostcache(folder) as cache, rank(cache) as client:
        store(client, "a")
        link = await RecordsLink.open(cache.socket_path)
        assert link.put_record(b"answer", b"ids")
        async with asyncio.timeout(PATIENCE_S):
            while not await link.all_records():
                pass
        await link.close()
        client.close()
    with hostcache(folder) as cache:
        link = await RecordsLink.open(cache.socket_path)
        assert await link.all_records() == [(b"answer", b"ids")]
        await link.close()


async def test_of_two_services_on_one_folder_the_second_goes_without(folder: Path) -> None:
    other = folder / "other"
    other.mkdir()
    with hostcache(folder) as cache, rank(cache) as client:
        store(client, "abc")
        with (
            running_hostcache(
                other, disk_cache_gb=DISK_GB, disk_folder=str(folder / "disk-cache")
            ) as second_cache,
            rank(second_cache) as second,
        ):
            store(second, "xyz")
            assert brought_up(second, "xyz") == (3, 0)
            assert not second.prefetch(None, named("abc"))
            status = await disk_status(second_cache)
            assert "another process uses this folder" in (status.off_reason or "")
        assert "serving goes on without the disk cache" in second_cache.log.read_text()
    with hostcache(folder) as cache, rank(cache) as client:
        assert brought_up(client, "abc") == (3, 3)
        assert brought_up(client, "xyz") == (0, 0)


def test_another_model_finds_nothing_and_takes_nothing_away(folder: Path) -> None:
    with hostcache(folder) as cache, rank(cache) as client:
        store(client, "abc")
    another = replace(GEOMETRY, identity=b"another model")
    with hostcache(folder) as cache, contextlib.closing(cache.attach(geometry=another)) as client:
        assert brought_up(client, "abc") == (0, 0)
        assert "it is of another model, number format or cache key" in cache.log.read_text()
    with hostcache(folder) as cache, rank(cache) as client:
        assert brought_up(client, "abc") == (3, 3)


def test_the_model_may_change_while_the_owner_lives_on(folder: Path) -> None:
    another = replace(GEOMETRY, identity=b"another model")
    with hostcache(folder, idle_s=0.0) as cache:
        with rank(cache) as client:
            store(client, "abc")
            asyncio.run(names_on_disk(cache, 3))
        with contextlib.closing(cache.attach(geometry=another)) as client:
            assert brought_up(client, "abc") == (0, 0)
        with rank(cache) as client:
            assert brought_up(client, "abc") == (3, 3)


def test_when_host_memory_fails_nothing_that_came_from_it_is_kept(folder: Path) -> None:
    with hostcache(folder, idle_s=0.0) as cache, rank(cache) as client:
        store(client, "abc")
        asyncio.run(names_on_disk(cache, 3))
        client.switch_off("a checksum did not match")
    with hostcache(folder) as cache, rank(cache) as client:
        assert brought_up(client, "abc") == (0, 0)


def test_a_folder_in_memory_is_refused_with_the_reason(tmp_path: Path) -> None:
    shared_memory = Path("/dev/shm")
    if not shared_memory.is_dir() or look_up(shared_memory).refusal() is None:
        pytest.skip("there is no shared memory here")
    disk_folder = shared_memory / f"keepwarm-test-{os.getpid()}"
    settings = HostCacheSettings(
        socket_path=str(tmp_path / "host.sock"),
        host_cache_gb=0.001,
        pinned=False,
        disk_cache_gb=1.0,
        disk_folder=str(disk_folder),
    )
    log = tmp_path / "hostcache.log"
    try:
        with start_hostcache(msgspec.json.encode(settings), log) as process:
            assert process.wait(END_LIMIT_S) == 2
    finally:
        disk_folder.rmdir()
    last_line = log.read_text().splitlines()[-1]
    assert last_line.startswith(f"error: --disk-cache-gb 1: {disk_folder} lies on /dev/shm, which is tmpfs")
    assert f"stat -f {disk_folder}" in last_line
