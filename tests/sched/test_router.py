"""Where turns go, case by case."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from keepwarm.core.errors import InvariantBroken
from keepwarm.core.hashing import join_hashes
from keepwarm.core.ids import BlockHash, RequestId
from keepwarm.core.rank_messages import Admitted, CacheEvent, Ended, Submit, Tokens
from keepwarm.core.sampling import GREEDY
from keepwarm.core.session import SessionKey
from keepwarm.sched.router import Router, RouterSettings

BLOCK_SIZE = 16
SHARP = RouterSettings(tie_tokens=BLOCK_SIZE)
"""Costs a block apart are the same, and no further."""
ANN, BEN = SessionKey(session="ann"), SessionKey(session="ben")


def names(prefix: str, start: int, end: int) -> list[BlockHash]:
    """The names of blocks [start, end) of a conversation."""
    return [BlockHash(f"{prefix}{index:08}".encode().rjust(16)) for index in range(start, end)]


def turn(
    name: str, blocks: Sequence[BlockHash], *, root: bytes = b"tenant", use_cache: bool = True
) -> Submit:
    """A prompt of so many full blocks and eight more tokens."""
    return Submit(
        request_id=RequestId(name),
        tokens=bytes(4 * (len(blocks) * BLOCK_SIZE + 8)),
        block_hashes=join_hashes(blocks),
        root=root,
        max_output_tokens=8,
        stop_tokens=(),
        sampling=GREEDY,
        use_cache=use_cache,
    )


def stored(blocks: Sequence[BlockHash]) -> CacheEvent:
    return CacheEvent(kind="stored", tier="l0", names=join_hashes(blocks), reason="computed")


def evicted(blocks: Sequence[BlockHash]) -> CacheEvent:
    return CacheEvent(kind="evicted", tier="l0", names=join_hashes(blocks), reason="room")


def demoted(blocks: Sequence[BlockHash]) -> CacheEvent:
    return CacheEvent(kind="stored", tier="l1", names=join_hashes(blocks), reason="demoted")


def make_router(num_ranks: int = 2, settings: RouterSettings = SHARP, *, num_blocks: int = 10_000) -> Router:
    router = Router(num_ranks, settings)
    for rank in range(num_ranks):
        router.rank_serves(rank, block_size=BLOCK_SIZE, num_blocks=num_blocks)
    return router


def end(router: Router, name: str) -> None:
    router.hear(Ended(request_id=RequestId(name), reason="stop"))
    router.check()


def ask(router: Router, name: str, blocks: Sequence[BlockHash], session: SessionKey) -> int:
    """One turn to its end, with what its rank says; where it was answered."""
    rank = router.route(turn(name, blocks), session)
    assert rank is not None
    router.take(rank, [stored(blocks)])
    end(router, name)
    return rank


def test_a_turn_goes_where_its_prefix_is() -> None:
    router = make_router()
    router.take(1, [stored(names("a", 0, 50))])
    assert router.route(turn("one", names("a", 0, 60))) == 1


def test_evicted_blocks_count_no_more() -> None:
    router = make_router()
    router.take(0, [stored(names("a", 0, 30))])
    router.take(1, [stored(names("a", 0, 50)), evicted(names("a", 20, 50))])
    assert router.uncached_tokens(turn("one", names("a", 0, 50)), 1) == 30 * BLOCK_SIZE + 8
    assert router.route(turn("one", names("a", 0, 50))) == 0


def test_a_turn_that_may_not_use_the_cache_finds_none() -> None:
    router = make_router()
    router.take(1, [stored(names("a", 0, 50))])
    assert router.uncached_tokens(turn("one", names("a", 0, 50), use_cache=False), 1) == 50 * BLOCK_SIZE + 8


def test_the_last_token_of_a_prompt_is_always_read() -> None:
    router = make_router()
    router.take(0, [stored(names("a", 0, 2))])
    whole_blocks = Submit(
        request_id=RequestId("one"),
        tokens=bytes(4 * 2 * BLOCK_SIZE),
        block_hashes=join_hashes(names("a", 0, 2)),
        root=b"",
        max_output_tokens=1,
        stop_tokens=(),
        sampling=GREEDY,
    )
    assert router.uncached_tokens(whole_blocks, 0) == BLOCK_SIZE


def test_a_turn_leaves_its_prefix_when_the_queue_there_is_longer_than_reading_it_again() -> None:
    router = make_router()
    router.take(0, [stored(names("a", 0, 50)), stored(names("b", 0, 100))])
    assert router.route(turn("one", names("b", 0, 130))) == 0
    assert router.route(turn("two", names("a", 0, 50))) == 0  # 30 blocks are waited for, not 50 read
    assert router.route(turn("three", names("b", 0, 130))) == 0
    assert router.route(turn("four", names("a", 0, 50))) == 1


def test_what_is_admitted_and_read_is_no_longer_waited_for() -> None:
    router = make_router()
    assert router.route(turn("long", names("a", 0, 50))) == 0
    assert router.route(turn("other", names("b", 0, 10))) == 1
    router.hear(Admitted(request_id=RequestId("long"), cached_tokens=45 * BLOCK_SIZE))
    assert router.route(turn("third", names("c", 0, 10))) == 0  # 5 blocks wait there, 10 on the other
    router.hear(Tokens(request_id=RequestId("other"), tokens=(1,)))
    assert router.route(turn("fourth", names("d", 0, 10))) == 1
    router.check()


def test_a_tie_leaves_a_session_where_it_was() -> None:
    router = make_router()
    assert ask(router, "a1", names("a", 0, 4), ANN) == 0
    assert ask(router, "b1", names("b", 0, 4), BEN) == 1
    router.take(1, [evicted(names("b", 0, 4))])
    assert ask(router, "b2", names("b", 0, 5), BEN) == 1


def test_the_sessions_of_two_tenants_are_not_each_other_s() -> None:
    router = make_router()
    assert ask(router, "a1", names("a", 0, 4), ANN) == 0
    assert router.route(turn("x1", names("x", 0, 4), root=b"another"), ANN) == 1


def test_a_subagent_starts_where_its_parent_is() -> None:
    router = make_router()
    assert ask(router, "a1", names("a", 0, 4), ANN) == 0
    assert ask(router, "b1", names("b", 0, 4), BEN) == 1
    for agent in ("x", "y"):
        assert ask(router, f"b/{agent}", names(agent, 0, 40), SessionKey(session="ben", agent=agent)) == 1


def test_a_subagent_does_not_queue_behind_its_siblings() -> None:
    router = make_router()
    assert ask(router, "a1", names("a", 0, 4), ANN) == 0
    chosen = [
        router.route(turn(f"a/{i}", names(f"s{i}", 0, 40)), SessionKey(session="ann", agent=f"s{i}"))
        for i in range(4)
    ]
    assert chosen == [0, 1, 0, 1]


def test_sessions_that_share_a_system_prompt_do_not_meet_on_one_rank() -> None:
    router = make_router()
    shared = names("system", 0, 100)
    homes = [
        ask(router, f"t{i}", [*shared, *names(f"s{i}x", 100, 200)], SessionKey(session=f"s{i}"))
        for i in range(16)
    ]
    assert 6 <= homes.count(0) <= 10
    again = [
        ask(router, f"u{i}", [*shared, *names(f"s{i}x", 100, 210)], SessionKey(session=f"s{i}"))
        for i in range(16)
    ]
    assert again == homes


def test_a_session_whose_rank_is_too_small_for_all_of_its_sessions_moves_on_a_tie() -> None:
    router = make_router(num_blocks=100)
    router.forget(1)
    for i in range(4):
        assert ask(router, f"t{i}", names(f"s{i}x", 0, 40), SessionKey(session=f"s{i}")) == 0
    router.rank_serves(1, block_size=BLOCK_SIZE, num_blocks=100)
    router.take(0, [evicted(names("s0x", 0, 40))])
    assert ask(router, "u0", names("s0x", 0, 41), SessionKey(session="s0")) == 1
    router.take(0, [evicted(names("s1x", 0, 40))])
    assert ask(router, "u1", names("s1x", 0, 41), SessionKey(session="s1")) == 1
    assert ask(router, "u2", names("s2x", 0, 41), SessionKey(session="s2")) == 0


def test_host_memory_is_worth_a_part_of_reading() -> None:
    router = make_router(settings=RouterSettings(tie_tokens=BLOCK_SIZE, promote_cost=0.25))
    router.take(0, [stored(names("a", 0, 20))])
    router.take_host([demoted(names("a", 0, 40))])
    one = turn("one", names("a", 0, 40))
    assert [router.uncached_tokens(one, rank) for rank in (0, 1)] == [
        20 * BLOCK_SIZE + 8,
        40 * BLOCK_SIZE + 8,
    ]
    for rank in (0, 1):
        router.set_can_promote(rank, True)
    assert [router.uncached_tokens(one, rank) for rank in (0, 1)] == [5 * BLOCK_SIZE + 8, 10 * BLOCK_SIZE + 8]
    router.forget_host()
    assert [router.uncached_tokens(one, rank) for rank in (0, 1)] == [
        20 * BLOCK_SIZE + 8,
        40 * BLOCK_SIZE + 8,
    ]


def test_a_lost_rank_gets_nothing_and_comes_back_empty() -> None:
    router = make_router()
    assert ask(router, "a1", names("a", 0, 4), ANN) == 0
    assert router.route(turn("a2", names("a", 0, 5)), ANN) == 0
    router.forget(0)
    router.check()
    router.take(0, [stored(names("a", 0, 4))])  # its last words
    router.hear(Tokens(request_id=RequestId("a2"), tokens=(1,)))
    router.check()
    assert router.route(turn("a3", names("a", 0, 5)), ANN) == 1
    router.rank_serves(0, block_size=BLOCK_SIZE, num_blocks=10_000)
    assert router.uncached_tokens(turn("a4", names("a", 0, 4)), 0) == 4 * BLOCK_SIZE + 8
    router.check()


def test_no_rank_that_serves_is_no_rank() -> None:
    router = Router(2)
    assert router.route(turn("a", names("a", 0, 4)), ANN) is None
    router.check()


def test_a_rank_with_far_more_open_turns_than_the_others_is_passed_over() -> None:
    router = make_router(settings=RouterSettings(tie_tokens=BLOCK_SIZE, hot_turns=3))
    router.take(0, [stored(names("a", 0, 50))])
    chosen: list[int | None] = []
    for i in range(6):
        chosen.append(router.route(turn(f"t{i}", names("a", 0, 50)), ANN))
        router.hear(Tokens(request_id=RequestId(f"t{i}"), tokens=(1,)))
    assert chosen == [0, 0, 0, 0, 1, 0]


def test_a_rank_with_far_more_to_read_than_the_others_is_passed_over() -> None:
    router = make_router(settings=RouterSettings(tie_tokens=BLOCK_SIZE, hot_tokens=30 * BLOCK_SIZE))
    router.take(0, [stored(names("a", 0, 500)), stored(names("b", 0, 500))])
    assert router.route(turn("b", names("b", 0, 540))) == 0
    assert router.route(turn("a", names("a", 0, 500))) == 1


def test_the_same_turn_twice_is_our_own_mistake() -> None:
    router = make_router()
    router.route(turn("a", names("a", 0, 4)))
    with pytest.raises(InvariantBroken, match="a was routed twice"):
        router.route(turn("a", names("a", 0, 4)))


def test_the_oldest_sessions_are_forgotten_first() -> None:
    router = make_router(settings=RouterSettings(max_sessions=3))
    for i in range(5):
        ask(router, f"t{i}", names(f"s{i}x", 0, 4), SessionKey(session=f"s{i}"))
    assert router.num_sessions == 3


def test_sessions_that_device_memory_has_long_forgotten_are_forgotten_too() -> None:
    router = make_router(num_blocks=20)
    for i in range(50):
        ask(router, f"t{i}", names(f"s{i}x", 0, 4), SessionKey(session=f"s{i}"))
    assert router.num_sessions == 4 * (2 * 20) * BLOCK_SIZE // (4 * BLOCK_SIZE + 8)


def test_more_names_than_a_rank_has_blocks_are_not_believed() -> None:
    router = make_router(num_blocks=20)
    router.take(0, [stored(names("a", 0, 21))])
    router.check()
    assert router.uncached_tokens(turn("one", names("a", 0, 10)), 0) == 10 * BLOCK_SIZE + 8
