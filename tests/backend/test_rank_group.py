"""Several ranks as one: real processes, of which one dies, and ranks of this process for what is counted."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence

import psutil
import pytest

from keepwarm.backend.rank_group import RankGroup
from keepwarm.backend.rank_port import Listener, RankEvent, RankView, RankWatcher, Watchers
from keepwarm.backend.rank_process import RankLimits, RankProcess
from keepwarm.core.errors import Degraded, InvariantBroken, NotReady, TooLittleMemory
from keepwarm.core.hashing import join_hashes
from keepwarm.core.ids import BlockHash, RequestId
from keepwarm.core.rank_messages import Admitted, CacheEvent, Ended, RankStats, Ready, Submit, Tokens
from keepwarm.core.restarts import RestartLimits
from keepwarm.core.sampling import GREEDY
from keepwarm.core.session import NO_SESSION, SessionKey
from tests.backend.ports import (
    LONG_TOKENS,
    PATIENCE_S,
    Ear,
    in_process_group,
    process_group,
    rank_process,
    turn,
)

ANN, BEN = SessionKey(session="ann"), SessionKey(session="ben")


@pytest.fixture
async def group() -> AsyncIterator[tuple[RankGroup, list[RankProcess]]]:
    members = [rank_process(rank, ranks=2) for rank in range(2)]
    group = RankGroup(members)
    await group.start()
    yield group, members
    await group.close()
    assert not psutil.Process().children(recursive=True)


async def test_a_killed_rank_fails_its_own_streams_once_and_the_others_go_on(
    group: tuple[RankGroup, list[RankProcess]],
) -> None:
    ranks, (_, dying) = group
    ears = await _a_stream_on_each(ranks)
    killed_pid = _kill(dying)
    end = await ears[1].end()
    assert end.error is not None
    assert end.error.code == "engine_lost"
    assert str(end.error.fields["message"]).startswith("the engine of rank 1 was lost")

    assert ranks.unready_reason() is None
    assert [view.state for view in ranks.ranks] == ["serving", "lost"]
    later = Ear()
    ranks.submit(turn("later"), later, session=BEN)  # whose rank is the lost one
    assert (await later.end()).reason == "length"
    assert _prompt_tokens(ranks, 0) == 2_008

    num_tokens = len(ears[0].tokens)
    await ears[0].until(lambda ear: len(ear.tokens) > num_tokens)
    assert not ears[0].ends
    await _until(lambda: ranks.ranks[1].state == "serving")
    assert dying.pid != killed_pid
    assert [view.num_restarts for view in ranks.ranks] == [0, 1]

    again = Ear()
    ranks.submit(turn("again"), again, session=SessionKey(session="new"))
    await again.end()
    assert _prompt_tokens(ranks, 1) == 8  # of the new process
    ranks.abort(RequestId("on 0"))
    assert (await ears[0].end()).reason == "aborted"
    assert [len(ear.ends) for ear in ears] == [1, 1]


async def test_turns_can_be_cut_and_aborted_wherever_they_are(
    group: tuple[RankGroup, list[RankProcess]],
) -> None:
    ranks, _ = group
    ears = await _a_stream_on_each(ranks)
    ranks.cut(RequestId("on 0"), 2)
    ranks.abort(RequestId("on 1"))
    assert [(await ear.end()).reason for ear in ears] == ["stop", "aborted"]


async def test_a_rank_that_is_left_stopped_leaves_the_others_serving(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits = RankLimits(restarts=RestartLimits(first_delay_s=0.01, max_losses=1))
    members = [rank_process(rank, limits=limits, ranks=2) for rank in range(2)]
    ranks = RankGroup(members)
    await ranks.start()
    try:
        _kill(members[1])
        await _until(lambda: ranks.ranks[1].state == "degraded")
        assert ranks.unready_reason() is None
        for i in range(3):
            ear = Ear()
            ranks.submit(turn(f"t{i}"), ear, session=BEN)
            assert (await ear.end()).reason == "length"
        assert _prompt_tokens(ranks, 0) == 24
        assert any("the engine of rank 1 was lost 1 times" in record.message for record in caplog.records)
        _kill(members[0])
        await _until(lambda: ranks.ranks[0].state == "degraded")
        reason = ranks.unready_reason()
        assert reason is not None
        assert reason.count("left stopped") == 2
        with pytest.raises(Degraded, match=r"rank 0 .* left stopped.*; the engine of rank 1 .* left stopped"):
            ranks.submit(turn("late"), Ear())
    finally:
        await ranks.close()


async def test_one_rank_that_cannot_be_loaded_ends_the_others_too() -> None:
    members = [rank_process(0, ranks=2), rank_process(1, ranks=2, device_cache_gb=0.0001)]
    ranks = RankGroup(members)
    with pytest.raises(TooLittleMemory):
        await ranks.start()
    assert not psutil.Process().children()


async def test_a_start_that_is_cancelled_leaves_no_process() -> None:
    ranks = process_group()
    start = asyncio.create_task(ranks.start())
    await _until(lambda: len(psutil.Process().children()) == 2)
    start.cancel()
    await asyncio.gather(start, return_exceptions=True)
    assert not psutil.Process().children()


async def test_one_rank_is_a_group_too() -> None:
    ranks = process_group(1)
    await ranks.start()
    try:
        ear = Ear()
        ranks.submit(turn("a"), ear, session=ANN)
        assert (await ear.end()).reason == "length"
        assert [view.state for view in ranks.ranks] == ["serving"]
    finally:
        await ranks.close()


async def test_sessions_are_spread_and_stay() -> None:
    ranks = in_process_group()
    await ranks.start()
    try:
        for round_number in range(3):
            for session in ("a", "b", "c", "d"):
                ear = Ear()
                named = turn(f"{session}{round_number}", num_prompt_tokens=4_000)
                ranks.submit(named, ear, session=SessionKey(session=session))
                await ear.end()
        assert [_prompt_tokens(ranks, rank) for rank in (0, 1)] == [24_000, 24_000]
    finally:
        await ranks.close()


async def test_a_conversation_finds_its_blocks_again_whatever_it_is_called() -> None:
    ranks = process_group()
    await ranks.start()
    try:
        sizes = {"a": 100, "b": 60}
        for name, num_blocks in sizes.items():
            ear = Ear()
            ranks.submit(prompt(name, num_blocks, of=name), ear)
            await ear.end()
        assert [_prompt_tokens(ranks, rank) for rank in (0, 1)] == [1_601, 961]
        for name, num_blocks in reversed(sizes.items()):
            ear = Ear()
            ranks.submit(prompt(f"{name} again", num_blocks + 20, of=name), ear)
            await ear.end()
            assert ear.cached_tokens == [16 * num_blocks]
    finally:
        await ranks.close()


# -- what is asked of the members, and told of them ------------------------------------------------


class NotedRank:
    """A `RankPort` of one that notes what it is told; the test speaks for it."""

    def __init__(self, rank: int, *, num_blocks: int = 1_000, max_model_len: int = 65_536) -> None:
        self.ready: Ready | None = Ready(
            num_blocks=num_blocks,
            block_size=16,
            bytes_per_block=1,
            max_num_seqs=4,
            max_model_len=max_model_len,
            vocab_size=256,
            description="noted",
        )
        self.rank = rank
        self.watchers = Watchers(rank)
        self.taken: dict[RequestId, Listener] = {}
        self.refusal: NotReady | None = None
        self.host_tier = ""

    async def start(self) -> None:
        assert self.ready is not None
        self.watchers.serves(self.ready)

    def submit(self, turn: Submit, listener: Listener, *, session: SessionKey = NO_SESSION) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.taken[turn.request_id] = listener

    def abort(self, request_id: RequestId) -> None:
        self.say(Ended(request_id=request_id, reason="aborted"))

    def cut(self, request_id: RequestId, num_output_tokens: int) -> None:
        self.say(Ended(request_id=request_id, reason="stop"))

    def say(self, event: RankEvent) -> None:
        self.taken[event.request_id](event)

    def unready_reason(self) -> str | None:
        return None

    @property
    def ranks(self) -> Sequence[RankView]:
        stats = RankStats(**dict.fromkeys(_COUNTS, 0), host_tier=self.host_tier)
        return (RankView(rank=self.rank, state="serving", stats=stats, num_restarts=0, ready=self.ready),)

    def watch(self, watcher: RankWatcher) -> None:
        self.watchers.add(watcher)

    async def close(self) -> None: ...


_COUNTS = (
    "steps_total",
    "prompt_tokens_total",
    "cached_tokens_total",
    "computed_tokens_total",
    "output_tokens_total",
    "preemptions_total",
    "evicted_blocks_total",
    "waiting",
    "running",
    "blocks_total",
    "blocks_held",
    "blocks_cached",
    "blocks_empty",
)
NAMES = [BlockHash(f"{index:016}".encode()) for index in range(200)]


def prompt(name: str, num_blocks: int, *, of: str = "") -> Submit:
    """`of`: whose names its blocks have."""
    return Submit(
        request_id=RequestId(name),
        tokens=bytes(4 * (16 * num_blocks + 1)),
        block_hashes=join_hashes([BlockHash(of.encode() + each[len(of) :]) for each in NAMES[:num_blocks]]),
        root=bytes(16),
        max_output_tokens=4,
        stop_tokens=(),
        sampling=GREEDY,
    )


def stored(names: Sequence[BlockHash], tier: str = "l0") -> CacheEvent:
    return CacheEvent(kind="stored", tier=tier, names=join_hashes(names))  # type: ignore[arg-type]


async def noted_group(**options: int) -> tuple[RankGroup, NotedRank, NotedRank]:
    members = NotedRank(0, **options), NotedRank(1)
    group = RankGroup(members)
    await group.start()
    return group, *members


async def test_turns_go_where_a_rank_says_their_blocks_are() -> None:
    group, _, second = await noted_group()
    second.watchers.cache_changed([stored(NAMES)])
    group.submit(prompt("a", 150), Ear())
    assert "a" in second.taken


async def test_host_memory_is_shared_by_ranks_whose_tier_is_on() -> None:
    group, first, second = await noted_group()
    first.watchers.cache_changed([stored(NAMES[:100])])
    group.feed.host_on([stored(NAMES, "l1")])
    second.host_tier = "on"
    group.submit(prompt("a", 200), Ear())
    assert "a" in second.taken
    second.say(Ended(request_id=RequestId("a"), reason="stop"))
    group.feed.host_off("gone")
    group.submit(prompt("b", 200), Ear())
    assert "b" in first.taken


async def test_what_a_rank_says_of_a_turn_is_heard_by_its_listener_and_the_router() -> None:
    group, first, second = await noted_group()
    ear = Ear()
    group.submit(prompt("a", 200), ear)
    group.submit(prompt("b", 100), Ear())
    assert (list(first.taken), list(second.taken)) == (["a"], ["b"])
    first.say(Admitted(request_id=RequestId("a"), cached_tokens=0))
    first.say(Tokens(request_id=RequestId("a"), tokens=(1,)))
    group.submit(prompt("c", 100), Ear())  # nothing is read any more where "a" is
    assert "c" in first.taken
    first.say(Ended(request_id=RequestId("a"), reason="stop"))
    assert [type(event) for event in ear.events] == [Admitted, Tokens, Ended]


async def test_a_turn_that_its_rank_refuses_leaves_nothing_behind() -> None:
    group, first, _ = await noted_group()
    first.refusal = NotReady("not now")
    with pytest.raises(NotReady, match="not now"):
        group.submit(prompt("a", 1), Ear())
    first.refusal = None
    group.submit(prompt("a", 1), Ear())
    with pytest.raises(InvariantBroken, match="a was submitted twice"):
        group.submit(prompt("a", 1), Ear())


async def test_a_turn_has_to_fit_into_the_smallest_rank() -> None:
    group, _, _ = await noted_group(num_blocks=10, max_model_len=500)
    assert group.ready is not None
    assert (group.ready.num_blocks, group.ready.max_model_len) == (10, 500)


async def test_a_lost_rank_has_no_turns_and_no_blocks() -> None:
    group, first, second = await noted_group()
    first.watchers.cache_changed([stored(NAMES)])
    first.watchers.lost()
    group.submit(prompt("a", 150), Ear(), session=ANN)
    assert "a" in second.taken
    assert first.ready is not None
    first.watchers.serves(first.ready)
    group.submit(prompt("b", 150), Ear())
    assert "b" in first.taken  # which has nothing to do


async def _a_stream_on_each(ranks: RankGroup) -> list[Ear]:
    """Turns "on 0" and "on 1" of the sessions Ann and Ben, under way."""
    ears = [Ear(), Ear()]
    for rank, (ear, session) in enumerate(zip(ears, (ANN, BEN), strict=True)):
        named = turn(f"on {rank}", num_prompt_tokens=2_000, max_output_tokens=LONG_TOKENS)
        ranks.submit(named, ear, session=session)
    for ear in ears:
        await ear.until(lambda ear: bool(ear.tokens))
    assert [_prompt_tokens(ranks, rank) for rank in (0, 1)] == [2_000, 2_000]
    return ears


def _prompt_tokens(ranks: RankGroup, rank: int) -> int:
    """Of all turns that a rank was given since it started."""
    stats = ranks.ranks[rank].stats
    assert stats is not None
    return stats.prompt_tokens_total


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():
            await asyncio.sleep(0.005)


def _kill(rank: RankProcess) -> int:
    assert rank.pid is not None
    os.kill(rank.pid, signal.SIGKILL)
    return rank.pid
