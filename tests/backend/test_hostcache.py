"""Host memory and its owner: real processes that write, read, hang and die."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from keepwarm.backend.host_client import HostClient, attach
from keepwarm.backend.host_link import RecordsLink, observe
from keepwarm.backend.host_messages import Told
from keepwarm.core.errors import BadSetting
from keepwarm.core.host_tier import HostGeometry, HostTierLost
from keepwarm.core.rank_messages import CacheEvent
from tests.backend.hostcaches import (
    COMMAND,
    END_LIMIT_S,
    GEOMETRY,
    SLOT_BYTES,
    RunningHostCache,
    content_of,
    found,
    named,
    rank_that_hangs,
    read,
    running_hostcache,
    start_hostcache,
    store,
)

PATIENCE_S = 30.0


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[RunningHostCache]:
    """With room for some 120 blocks."""
    with running_hostcache(tmp_path) as running:
        yield running
    assert not os.path.exists(running.socket_path)


@contextlib.contextmanager
def rank(cache: RunningHostCache, number: int = 0) -> Iterator[HostClient]:
    with contextlib.closing(cache.attach(number)) as client:
        yield client


def test_what_one_rank_writes_another_one_reads_byte_for_byte(cache: RunningHostCache) -> None:
    with rank(cache, 0) as writer, rank(cache, 1) as reader:
        assert writer.arena.layout == reader.arena.layout
        store(writer, "abcdef")
        assert read(reader, "abcdefg") == [content_of(name) for name in named("abcdef")]
        assert read(reader, "x") == []
        assert not reader.prefetch(None, named("x"))


def test_what_a_rank_wrote_outlives_it(cache: RunningHostCache) -> None:
    with rank(cache) as first:
        store(first, "abc")
    with rank(cache) as second:
        assert read(second, "abc") == [content_of(name) for name in named("abc")]


def test_leases_over_the_socket_are_those_of_the_index(cache: RunningHostCache) -> None:
    with rank(cache) as client:
        store(client, "abc")
        lease = client.reserve(named("a")[-1], named("abcde")[1:])
        assert lease is not None
        assert (lease.num_present, len(lease.slots), lease.num_from_disk) == (2, 2, 0)
        assert client.reserve(named("nobody wrote this")[-1], named("x")) is None
        client.release(lease)
        client.drop([named("ab")[-1]])
        assert found(client, "abc").num_present == 1


async def test_a_killed_rank_s_leases_and_half_written_slots_are_reclaimed(cache: RunningHostCache) -> None:
    with rank(cache) as survivor:
        store(survivor, "abc")
        with rank_that_hangs(cache.socket_path) as doomed:
            status = (await first_told(cache)).status
            assert (status.num_leased, status.num_writing, status.ranks) == (3, 2, (0, 7))
            os.kill(doomed.pid, signal.SIGKILL)
            status = (await told_until(cache, lambda told: told.status.ranks == (0,))).status
            assert (status.num_leased, status.num_writing, status.num_cached) == (0, 0, 3)
            assert status.num_reclaimed_total == 2
        assert read(survivor, "abcd") == [content_of(name) for name in named("abc")]
        store(survivor, "abcdef")
        assert len(read(survivor, "abcdef")) == 6
    assert cache.process.poll() is None


async def test_a_rank_that_hangs_up_keeps_its_slots_until_its_process_is_gone(
    cache: RunningHostCache,
) -> None:
    with rank(cache) as survivor:
        store(survivor, "abc")
        with rank_that_hangs(cache.socket_path) as doomed:
            assert doomed.stdin is not None
            assert doomed.stdout is not None
            doomed.stdin.write(b"hang up\n")
            doomed.stdin.flush()
            assert doomed.stdout.readline() == b"hung up\n"
            told = [await first_told(cache) for _ in range(3)]
            assert [(one.status.num_writing, one.status.ranks) for one in told] == [(2, (0, 7))] * 3
        await told_until(cache, lambda told: told.status.num_writing == 0)


def test_a_rank_cannot_shorten_the_segment_under_the_others(cache: RunningHostCache) -> None:
    with rank(cache) as client:
        store(client, "a")
        for descriptor in segment_descriptors(cache.process.pid):
            seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
            assert seals & fcntl.F_SEAL_SHRINK
            with pytest.raises(OSError, match="not permitted"):
                os.ftruncate(descriptor, 0)
            os.close(descriptor)


def test_the_segment_has_no_name_that_could_be_left_behind(cache: RunningHostCache) -> None:
    with rank(cache) as client:
        store(client, "a")
        for pid in (cache.process.pid, os.getpid()):
            maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
            [mapped] = [line for line in maps if "keepwarm-host-cache" in line]
            assert mapped.endswith("/memfd:keepwarm-host-cache (deleted)")
    assert "keepwarm-host-cache" not in Path(f"/proc/{os.getpid()}/maps").read_text()


def test_memory_is_taken_only_as_it_is_written(tmp_path: Path) -> None:
    with running_hostcache(tmp_path, host_cache_gb=0.1) as cache, rank(cache) as client:
        store(client, "abc")
        descriptors = segment_descriptors(cache.process.pid)
        taken = max(os.fstat(descriptor).st_blocks * 512 for descriptor in descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        assert client.arena.layout.total_bytes > 90_000_000
        assert taken < 20 * SLOT_BYTES


def test_ranks_with_other_blocks_are_refused_while_one_is_attached(cache: RunningHostCache) -> None:
    other = HostGeometry(identity=b"another", block_size=16, slot_bytes=4096)
    with rank(cache) as client:
        store(client, "abc")
        with pytest.raises(BadSetting, match="rank 1 has blocks of 16 tokens and 4096 bytes"):
            cache.attach(1, geometry=other)
        assert len(read(client, "abc")) == 3
    with contextlib.closing(cache.attach(1, geometry=other)) as client:
        assert client.arena.layout.slot_bytes == 4096
        assert client.find(None, named("abc")) is None


def test_a_budget_that_holds_no_block_is_named(tmp_path: Path) -> None:
    with running_hostcache(tmp_path, host_cache_gb=0.000005) as cache:
        with pytest.raises(BadSetting, match=r"--host-cache-gb.*5000 bytes hold no block.*8192"):
            cache.attach()
        assert cache.process.poll() is None


async def test_a_tier_that_is_switched_off_is_lost_to_all_and_says_why(cache: RunningHostCache) -> None:
    with rank(cache, 0) as first, rank(cache, 1) as second:
        store(first, "abc")
        lease = found(first, "abc")
        second.switch_off("slot 3 of rank 1: checksum 1 instead of 2")
        with pytest.raises(HostTierLost, match="switched off: slot 3 of rank 1"):
            first.find(None, named("abc"))
        with pytest.raises(HostTierLost, match="switched off"):  # so what was copied meanwhile is not used
            first.release(lease)
        told = await first_told(cache)
        assert told.events == ()
        assert (told.status.num_empty, told.status.off_reason) == (
            told.status.num_slots,
            "slot 3 of rank 1: checksum 1 instead of 2",
        )
        with pytest.raises(HostTierLost, match="switched off"):
            cache.attach(2)
    assert "ERROR hostcache: host memory is switched off" in cache.log.read_text()


def test_an_owner_that_hangs_is_lost_and_stays_so(cache: RunningHostCache) -> None:
    with contextlib.closing(cache.attach(limit_s=0.2)) as client:
        store(client, "abc")
        cache.process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(HostTierLost, match="timed out"):
                client.find(None, named("abc"))
            with pytest.raises(HostTierLost, match="timed out"):
                attach(cache.socket_path, rank=1, geometry=GEOMETRY, limit_s=0.2)
        finally:
            cache.process.send_signal(signal.SIGCONT)
        with pytest.raises(HostTierLost, match="timed out"):  # its answer may come: it is not ours now
            client.find(None, named("x"))


def test_an_owner_that_dies_is_lost_and_what_is_mapped_stays_readable(tmp_path: Path) -> None:
    with running_hostcache(tmp_path) as cache, rank(cache) as client:
        store(client, "abc")
        lease = found(client, "abc")
        cache.process.kill()
        cache.process.wait(END_LIMIT_S)
        with pytest.raises(HostTierLost):
            client.release(lease)
        start = client.arena.layout.slots_offset + int(lease.slots[0]) * SLOT_BYTES
        assert bytes(client.arena.memory[start : start + SLOT_BYTES]) == content_of(named("a")[0])
    with pytest.raises(HostTierLost):
        cache.attach()


def test_it_replaces_the_socket_of_one_that_was_killed(tmp_path: Path) -> None:
    with running_hostcache(tmp_path) as killed:
        killed.process.kill()
        killed.process.wait(END_LIMIT_S)
    with running_hostcache(tmp_path) as cache, rank(cache) as client:
        store(client, "abc")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_when_asked(tmp_path: Path, number: signal.Signals) -> None:
    with running_hostcache(tmp_path) as cache, rank(cache):
        cache.process.send_signal(number)
        assert cache.process.wait(END_LIMIT_S) == 0
        assert not os.path.exists(cache.socket_path)


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    with running_hostcache(tmp_path) as cache, rank(cache):
        assert cache.process.stdin is not None
        cache.process.stdin.close()
        assert cache.process.wait(END_LIMIT_S) == 0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (b"{}", "socket_path"),
        (b'{"socket_path": "/tmp/x", "host_cahce_gb": 1}', "host_cahce_gb"),
        (b'{"socket_path": "/tmp/x", "host_cache_gb": -1}', "--host-cache-gb -1.0: must be a number of GB"),
        (b'{"socket_path": "/no/such/folder/x"}', "/no/such/folder/x"),
    ],
)
def test_what_it_cannot_do_is_its_last_word(tmp_path: Path, settings: bytes, said: str) -> None:
    log = tmp_path / "log"
    with start_hostcache(settings, log) as process:
        assert process.wait(END_LIMIT_S) == 2
    last = log.read_text().splitlines()[-1]
    assert last.startswith("error: ")
    assert said in last


def test_a_budget_beyond_the_machine_is_lowered_and_the_log_says_so(tmp_path: Path) -> None:
    with running_hostcache(tmp_path, host_cache_gb=500_000.0) as cache:
        assert "WARNING hostcache: --host-cache-gb 500000: lowered to" in cache.log.read_text()
        assert 0 < cache.ready.budget_bytes < 500e12
        assert cache.ready.budget in cache.log.read_text()


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("ulimit -f 1024", "lowered to 0.001 GB, because a file's size"),
        ("ulimit -v 4000000", "because a process's address space is limited to 4.1 GB (ulimit -v)"),
    ],
)
def test_a_limit_of_the_process_lowers_the_budget(tmp_path: Path, limit: str, said: str) -> None:
    command = ("bash", "-c", f"{limit}; exec {' '.join(COMMAND)}")
    socket_path = str(tmp_path / "host.sock")
    log = tmp_path / "log"
    settings = msgspec.json.encode({"socket_path": socket_path, "host_cache_gb": 100, "pinned": False})
    with start_hostcache(settings, log, command) as process:
        assert process.stdout is not None
        assert process.stdout.readline(), log.read_text()
        assert "--host-cache-gb 100: lowered to" in log.read_text()
        assert said in log.read_text()
        with contextlib.closing(attach(socket_path, rank=0, geometry=GEOMETRY)) as client:
            store(client, "abc")


async def test_who_listens_late_is_told_what_is_there_and_then_what_changes(cache: RunningHostCache) -> None:
    with rank(cache) as client:
        store(client, "abc")
        async with listening(cache) as told:
            first = await anext(told)
            assert first.is_whole
            assert [event.names for event in first.events] == [b"".join(named("abc"))]
            store(client, "abcde")
            client.drop([named("abcde")[-1]])
            events = [event async for event in events_of(told, 2)]
        assert [(event.kind, event.tier, event.reason) for event in events] == [
            ("stored", "l1", "demoted"),
            ("evicted", "l1", "dropped"),
        ]
        assert events[0].parent == named("abc")[-1]


async def test_an_arena_that_is_made_anew_is_told_as_cleared(cache: RunningHostCache) -> None:
    with rank(cache) as client:
        store(client, "abc")
    async with listening(cache) as told:
        await anext(told)
        other = HostGeometry(identity=b"another", block_size=16, slot_bytes=4096)
        cache.attach(geometry=other).close()
        [event] = [event async for event in events_of(told, 1)]
    assert (event.kind, event.names, event.reason) == ("evicted", b"".join(named("abc")), "cleared")


async def test_records_outlive_who_put_them(cache: RunningHostCache) -> None:
    first = await RecordsLink.open(cache.socket_path)
    assert first.put_record(b"a", b"1")
    assert first.put_record(b"b", bytes(3_000_000))
    assert first.put_record(b"a", b"2")
    await first.close()
    second = await RecordsLink.open(cache.socket_path)
    async with asyncio.timeout(PATIENCE_S):
        while (records := await second.all_records()) != [(b"b", bytes(3_000_000)), (b"a", b"2")]:
            assert len(records) < 3
            await asyncio.sleep(0.01)
    await second.close()


async def test_a_link_to_a_dead_owner_keeps_nothing_and_says_so(tmp_path: Path) -> None:
    with running_hostcache(tmp_path) as cache:
        link = await RecordsLink.open(cache.socket_path)
        cache.process.kill()
        cache.process.wait(END_LIMIT_S)
        with pytest.raises(HostTierLost):
            await link.all_records()
        async with asyncio.timeout(PATIENCE_S):
            while link.put_record(b"a", b"1"):
                await asyncio.sleep(0.01)
        await link.close()
        with pytest.raises(HostTierLost):
            await RecordsLink.open(cache.socket_path)
        with pytest.raises(HostTierLost):
            await first_told(cache)


def test_a_rank_s_mistake_costs_it_its_own_connection_alone(cache: RunningHostCache) -> None:
    with rank(cache, 0) as right, rank(cache, 1) as wrong:
        store(right, "abc")
        lease = found(wrong, "abc")
        wrong.release(lease)
        with pytest.raises(HostTierLost):
            wrong.release(lease)
        assert len(read(right, "abc")) == 3
    assert "owner 2 has no lease 2" in cache.log.read_text()


def test_a_stream_that_is_none_of_ours_ends_its_own_connection_alone(cache: RunningHostCache) -> None:
    with rank(cache) as client:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
            stranger.settimeout(PATIENCE_S)
            stranger.connect(cache.socket_path)
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert stranger.recv(1) == b""
        store(client, "abc")


async def first_told(cache: RunningHostCache) -> Told:
    async with listening(cache) as told:
        return await anext(told)


async def told_until(cache: RunningHostCache, condition: Callable[[Told], bool]) -> Told:
    async with listening(cache) as told:
        async for one in told:
            if condition(one):
                return one
    raise AssertionError("it ended")


@contextlib.asynccontextmanager
async def listening(cache: RunningHostCache) -> AsyncIterator[AsyncIterator[Told]]:
    async with asyncio.timeout(PATIENCE_S), contextlib.aclosing(observe(cache.socket_path)) as told:
        yield told


async def events_of(told: AsyncIterator[Told], count: int) -> AsyncIterator[CacheEvent]:
    """The next so many."""
    async for one in told:
        for event in one.events:
            yield event
            count -= 1
        if count <= 0:
            return


def segment_descriptors(pid: int) -> list[int]:
    """The segments that a process has open, opened here too."""
    folder = Path(f"/proc/{pid}/fd")
    paths = [path for path in folder.iterdir() if "keepwarm-host-cache" in os.readlink(path)]
    return [os.open(path, os.O_RDWR) for path in paths]
