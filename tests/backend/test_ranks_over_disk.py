"""The real scheduler over a real `keepwarm hostcache` with a disk: what it reads from there is as if
computed."""

from __future__ import annotations

import contextlib
import math
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from keepwarm.core.host_tier import HostGeometry
from keepwarm.sched import promotions
from keepwarm.sched.scheduler import SchedulerSettings
from tests.backend.hostcaches import END_LIMIT_S, RunningHostCache
from tests.backend.test_hostcache_disk import disk_status, folder, hostcache, names_on_disk
from tests.sched.driver import BLOCK_SIZE, Rank, make_limits

__all__ = ["folder"]

LIMITS = make_limits(num_blocks=32)
GEOMETRY = HostGeometry(identity=b"scripted", block_size=BLOCK_SIZE, slot_bytes=LIMITS.layout.bytes_per_block)
CONVERSATIONS = [[(number * step) % 29 for number in range(60)] for step in (1, 2, 3, 4, 5)]
NUM_FULL = (60 - 1) // BLOCK_SIZE
SETTINGS = SchedulerSettings(max_num_batched_tokens=16, output_reserve_tokens=8)


@contextlib.contextmanager
def rank_over(cache: RunningHostCache) -> Iterator[Rank]:
    """Its steps may be as many as the disk needs."""
    with contextlib.closing(cache.attach(geometry=GEOMETRY)) as client:
        rank = Rank(limits=LIMITS, settings=SETTINGS, depth=2, host=client, arena=client.arena, copy_steps=2)
        yield rank
        rank.executor.close()


def ask(rank: Rank, name: str, tokens: list[int]) -> list[int]:
    rank.submit(name, tokens)
    rank.run(max_steps=10**6)
    return rank.output[name]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of the driver is a second of its clock, whatever it took."""
    monkeypatch.setattr(promotions, "PREFETCH_PATIENCE_S", math.inf)


@pytest.mark.parametrize("ends", ["cleanly", "killed"])
async def test_after_a_restart_of_everything_answers_are_the_same_and_prompts_come_from_disk(
    folder: Path, ends: str
) -> None:
    with hostcache(folder, idle_s=0.0 if ends == "killed" else 1000.0) as cache, rank_over(cache) as rank:
        cold = [ask(rank, f"cold {index}", tokens) for index, tokens in enumerate(CONVERSATIONS)]
        if ends == "killed":
            await names_on_disk(cache, rank.scheduler.stats().demoted_blocks_total)
            cache.process.kill()
        else:
            cache.process.send_signal(signal.SIGTERM)
        cache.process.wait(END_LIMIT_S)
    with hostcache(folder) as cache, rank_over(cache) as rank:
        await disk_status(cache)
        for index, tokens in enumerate(CONVERSATIONS):
            assert ask(rank, f"warm {index}", tokens) == cold[index]
            assert rank.cached[f"warm {index}"] == NUM_FULL * BLOCK_SIZE
            assert rank.from_host[f"warm {index}"] == NUM_FULL * BLOCK_SIZE
        stats = rank.scheduler.stats()
        assert stats.disk_tokens_total == stats.host_tokens_total == len(cold) * NUM_FULL * BLOCK_SIZE
        assert stats.host_tier == "on"


async def test_damage_on_disk_costs_reading_again_and_no_answer(folder: Path) -> None:
    with hostcache(folder) as cache, rank_over(cache) as rank:
        cold = [ask(rank, f"cold {index}", tokens) for index, tokens in enumerate(CONVERSATIONS)]
    for file in (folder / "disk-cache").glob("segment-*.kv"):
        raw = bytearray(file.read_bytes())
        for offset in range(100, len(raw), 1500):
            raw[offset] ^= 0x10
        file.write_bytes(raw)
    with hostcache(folder) as cache, rank_over(cache) as rank:
        await disk_status(cache)
        for index, tokens in enumerate(CONVERSATIONS):
            assert ask(rank, f"warm {index}", tokens) == cold[index]
        stats = rank.scheduler.stats()
        assert 0 < stats.disk_tokens_total < len(cold) * NUM_FULL * BLOCK_SIZE
        assert stats.host_tier == "on"
        assert (await disk_status(cache)).num_damaged_total > 0
