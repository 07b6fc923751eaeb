"""Answers kept by a real `keepwarm hostcache`, which may die."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from keepwarm.backend.host_link import RecordsLink
from keepwarm.backend.kept_answers import KeptAnswers
from keepwarm.chat.answer_records import AnswerRecords
from keepwarm.chat.replay import RememberedAnswer
from keepwarm.core.ids import TenantId, token_ids
from tests.backend.hostcaches import running_hostcache

ADA = TenantId("ada")
ANSWER = RememberedAnswer(header="\n", tokens=token_ids([3, 1, 2]))
LIMIT_S = 30.0


@contextlib.asynccontextmanager
async def front_at(socket_path: str) -> AsyncIterator[KeptAnswers]:
    kept = KeptAnswers(AnswerRecords(b"model"), lambda: RecordsLink.open(socket_path), reconnect_s=0.01)
    await kept.open()
    try:
        yield kept
    finally:
        await kept.close()


async def known_at(socket_path: str) -> set[bytes]:
    async with front_at(socket_path) as front:
        return {key for _tenant, key, _answer in front.memo.all()}


async def test_the_next_front_knows_them(tmp_path: Path) -> None:
    with running_hostcache(tmp_path) as host:
        async with front_at(host.socket_path) as front:
            for number in range(2_000):
                front.memo.put(ADA, b"%d" % number, ANSWER)
        assert await known_at(host.socket_path) == {b"%d" % number for number in range(2_000)}


async def test_a_keeper_that_was_killed_is_missed_by_nobody_and_the_next_one_learns_all(
    tmp_path: Path,
) -> None:
    with running_hostcache(tmp_path) as host:
        async with front_at(host.socket_path) as front:
            front.memo.put(ADA, b"old", ANSWER)
            host.process.kill()
            await asyncio.to_thread(host.process.wait, LIMIT_S)
            with running_hostcache(tmp_path) as other:
                assert other.socket_path == host.socket_path
                async with asyncio.timeout(LIMIT_S):
                    number = 0
                    while b"old" not in await known_at(other.socket_path):
                        front.memo.put(ADA, b"new %d" % number, ANSWER)  # notices that it is gone
                        number += 1
                        await asyncio.sleep(0.01)


async def test_a_front_without_a_keeper_serves_all_the_same(tmp_path: Path) -> None:
    async with front_at(str(tmp_path / "nobody")) as front:
        front.memo.put(ADA, b"k", ANSWER)
        assert front.memo.get(ADA, b"k") is not None
