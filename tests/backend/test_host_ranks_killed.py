"""Ranks that work and are killed at any moment: what is read is what was written, and in the end
every block is accounted for."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import aclosing
from pathlib import Path

from keepwarm.backend.host_link import check, observe
from keepwarm.backend.host_messages import HostStatus
from tests.backend.hostcaches import running_hostcache

NUM_KILLS = 6
MANY_TURNS = 10**9
FEW_TURNS = 300
PATIENCE_S = 120.0


async def test_blocks_are_sound_and_accounted_for_after_ranks_were_killed_at_work(tmp_path: Path) -> None:
    with running_hostcache(tmp_path, host_cache_gb=0.0005) as cache:  # some 60 blocks
        async with asyncio.timeout(PATIENCE_S):
            lasting = await start(cache.socket_path, rank=0, num_turns=FEW_TURNS)
            for number in range(NUM_KILLS):
                doomed = await start(cache.socket_path, rank=1 + number, num_turns=MANY_TURNS)
                await told_turns(cache.socket_path)
                assert doomed.returncode is None, await output_of(doomed)
                doomed.kill()
                await output_of(doomed)
            assert int(await output_of(lasting)) > 0
            assert lasting.returncode == 0
            status = await when_all_have_left(cache.socket_path)
            await check(cache.socket_path)
        assert (status.num_writing, status.num_leased) == (0, 0)
        assert status.num_cached + status.num_empty == status.num_slots
        assert status.num_evicted_total > 0
        assert cache.process.poll() is None
        assert "Traceback" not in cache.log.read_text()


async def start(socket_path: str, *, rank: int, num_turns: int) -> Process:
    """One that works."""
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "tests.backend.host_worker",
            socket_path,
            str(rank),
            str(rank),
            str(num_turns),
        ),
        stdout=PIPE,
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"attached\n"
    return process


async def output_of(process: Process) -> bytes:
    output, _ = await process.communicate()
    return output


async def told_turns(socket_path: str) -> None:
    """Until ranks have found more than before: they are at work."""
    first: int | None = None
    async with aclosing(observe(socket_path)) as telling:
        async for told in telling:
            if first is not None and told.status.num_found_total > first:
                return
            first = told.status.num_found_total if first is None else first


async def when_all_have_left(socket_path: str) -> HostStatus:
    async with aclosing(observe(socket_path)) as telling:
        async for told in telling:
            if not told.status.ranks:
                return told.status
    raise AssertionError("it ended")
