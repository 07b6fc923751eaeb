"""What a front generated is known to the next one, whatever becomes of the keeper."""

from __future__ import annotations

import asyncio

import pytest

from keepwarm.backend.kept_answers import KeptAnswers
from keepwarm.chat.answer_records import AnswerRecords
from keepwarm.chat.replay import RememberedAnswer
from keepwarm.core.host_tier import HostTierLost
from keepwarm.core.ids import TenantId, token_ids

ADA = TenantId("ada")
RECORDS = AnswerRecords(b"model")
LIMIT_S = 10.0


def answer(*tokens: int) -> RememberedAnswer:
    return RememberedAnswer(header="", tokens=token_ids(list(tokens)))


class Keeper:
    """Keeps records in this process; may be away."""

    def __init__(self) -> None:
        self.records: dict[bytes, bytes] = {}
        self.is_there = True
        self.num_connections = 0
        self.changed = asyncio.Event()

    async def connect(self) -> Keeper:
        if not self.is_there:
            raise HostTierLost("nobody is there")
        self.num_connections += 1
        return self

    def put_record(self, key: bytes, value: bytes) -> bool:
        if self.is_there:
            self.records[key] = value
            self.changed.set()
        return self.is_there

    async def all_records(self) -> list[tuple[bytes, bytes]]:
        return list(self.records.items())

    async def close(self) -> None:
        self.num_connections -= 1


def front_of(keeper: Keeper, records: AnswerRecords = RECORDS) -> KeptAnswers:
    return KeptAnswers(records, keeper.connect, reconnect_s=0.0)


async def test_an_answer_is_known_to_the_next_front() -> None:
    keeper = Keeper()
    first, second = front_of(keeper), front_of(keeper)
    await first.open()
    first.memo.put(ADA, b"k", answer(1, 2))
    await first.close()

    await second.open()

    found = second.memo.get(ADA, b"k")
    assert found is not None
    assert found.tokens.tolist() == [1, 2]
    assert second.memo.get(TenantId("bob"), b"k") is None
    await second.close()
    assert keeper.num_connections == 0


async def test_one_of_another_model_is_not() -> None:
    keeper = Keeper()
    first, second = front_of(keeper), front_of(keeper, AnswerRecords(b"other"))
    await first.open()
    first.memo.put(ADA, b"k", answer(1))
    await second.open()
    assert second.memo.get(ADA, b"k") is None
    await first.close()
    await second.close()


async def test_a_keeper_that_comes_late_is_told_everything() -> None:
    keeper = Keeper()
    keeper.is_there = False
    front = front_of(keeper)
    await front.open()
    front.memo.put(ADA, b"k", answer(1))
    keeper.is_there = True
    async with asyncio.timeout(LIMIT_S):
        await keeper.changed.wait()
    assert set(keeper.records) == {RECORDS.encode(ADA, b"k", answer(1))[0]}
    await front.close()


async def test_a_keeper_that_is_lost_costs_no_turn_and_its_successor_is_told_everything() -> None:
    keeper = Keeper()
    front = front_of(keeper)
    await front.open()
    front.memo.put(ADA, b"old", answer(1))
    keeper.is_there = False
    front.memo.put(ADA, b"new", answer(2))
    assert front.memo.get(ADA, b"new") is not None
    keeper.records.clear()
    keeper.changed.clear()
    keeper.is_there = True
    async with asyncio.timeout(LIMIT_S):
        await keeper.changed.wait()
    assert len(keeper.records) == 2
    await front.close()
    assert keeper.num_connections == 0


@pytest.mark.parametrize("is_there", [True, False])
async def test_closing_ends_the_search(is_there: bool) -> None:
    keeper = Keeper()
    keeper.is_there = is_there
    front = front_of(keeper)
    await front.open()
    await front.close()
    assert keeper.num_connections == 0
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
