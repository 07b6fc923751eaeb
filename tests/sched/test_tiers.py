"""The scheduler over two tiers: what goes down, what comes up, and what happens while it does."""

from __future__ import annotations

import pytest

from keepwarm.core.hashing import HASH_BYTES
from keepwarm.core.ids import BlockHash, RequestId
from keepwarm.sched.settings import Demote
from tests.sched.driver import BLOCK_SIZE, Rank, expected_output, make_limits, make_submit
from tests.sched.tiers import Host, tier_of

PROMPT = [number % 29 for number in range(40)]
OTHERS = [[number * step % 31 for number in range(100)] for step in (3, 5, 7)]
NUM_FULL = (len(PROMPT) - 1) // BLOCK_SIZE
POLICIES: tuple[Demote, ...] = ("turn_end", "eviction")


def evict_all(rank: Rank) -> None:
    """Turns that fill device memory with something else."""
    for index, other in enumerate(OTHERS):
        rank.ask(f"other {index} {len(rank.ends)}", other, max_output_tokens=1)


def directions(rank: Rank) -> list[str]:
    return [copy.direction for plan in rank.plans for copy in plan.copies]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("demote", POLICIES)
def test_what_was_evicted_is_copied_up_and_the_answer_is_the_same(demote: Demote, depth: int) -> None:
    host = Host()
    rank = host.rank(demote=demote, depth=depth, copy_steps=2)
    cold = rank.ask("cold", PROMPT)
    evict_all(rank)
    assert rank.ask("warm", PROMPT) == cold
    assert rank.cached["warm"] == NUM_FULL * BLOCK_SIZE
    assert rank.from_host["warm"] == NUM_FULL * BLOCK_SIZE
    host.check_at_rest()


@pytest.mark.parametrize("demote", POLICIES)
def test_another_rank_copies_up_what_one_copied_down(demote: Demote) -> None:
    host = Host()
    first = host.rank(demote=demote)
    cold = first.ask("cold", PROMPT)
    evict_all(first)
    second = host.rank(demote=demote)
    assert second.ask("warm", PROMPT) == cold
    assert second.from_host["warm"] == NUM_FULL * BLOCK_SIZE


def test_a_rank_that_died_costs_its_sessions_one_copy() -> None:
    host = Host()
    first = host.rank(copy_steps=3)
    cold = first.ask("cold", PROMPT)
    first.submit("dies", [*PROMPT, *cold, 1, 2, 3, 4])
    first.step()
    host.kill_rank()
    second = host.rank()
    assert second.ask("warm", PROMPT) == cold
    assert second.from_host["warm"] == NUM_FULL * BLOCK_SIZE
    host.check_at_rest()


def test_at_a_turns_end_only_what_is_new_goes_down() -> None:
    host = Host()
    rank = host.rank()
    answer = rank.ask("first", PROMPT)
    num_first = rank.scheduler.stats().demoted_blocks_total
    assert num_first == (len(PROMPT) + len(answer) - 1) // BLOCK_SIZE
    grown = [*PROMPT, *answer, 1, 2, 3, 4, 5]
    answer = rank.ask("second", grown)
    assert rank.scheduler.stats().demoted_blocks_total == (len(grown) + len(answer) - 1) // BLOCK_SIZE
    assert rank.from_host == {"first": 0, "second": 0}


def test_clean_blocks_are_evicted_without_a_copy() -> None:
    rank = Host().rank(demote="turn_end")
    rank.ask("first", PROMPT)
    evict_all(rank)
    assert rank.scheduler.stats().evicted_blocks_total > 0
    assert not any(copy.before_works for plan in rank.plans for copy in plan.copies)


def test_what_came_up_is_clean_and_what_takes_its_place_is_not() -> None:
    host = Host()
    host.rank().ask("cold", PROMPT, max_output_tokens=1)
    rank = host.rank(demote="eviction")
    rank.ask("warm", PROMPT[: NUM_FULL * BLOCK_SIZE + 1], max_output_tokens=1)
    assert rank.from_host["warm"] == NUM_FULL * BLOCK_SIZE
    evict_all(rank)
    evict_all(rank)
    down = [copy for plan in rank.plans for copy in plan.copies if copy.direction == "demote"]
    assert sum(len(copy.blocks) for copy in down) == sum(len(other) // BLOCK_SIZE for other in OTHERS)


def test_dirty_blocks_go_down_with_the_plan_that_overwrites_them() -> None:
    host = Host()
    rank = host.rank(demote="eviction")
    rank.ask("first", PROMPT)
    assert directions(rank) == []
    evict_all(rank)
    copies = [copy for plan in rank.plans for copy in plan.copies]
    assert copies[0].before_works
    assert {copy.direction for copy in copies} == {"demote"}


def test_what_stands_before_an_evicted_block_goes_down_too_and_stays() -> None:
    host = Host(limits=make_limits(num_blocks=32))
    rank = host.rank(demote="eviction", copy_steps=2)
    cold = rank.ask("first", PROMPT, max_output_tokens=1)  # 10 blocks
    rank.ask("second", OTHERS[0][:60], max_output_tokens=1)  # 15 more
    rank.ask("third", OTHERS[1][:40], max_output_tokens=1)  # 7 empty ones are left
    copies = [copy for plan in rank.plans for copy in plan.copies]
    assert [(copy.before_works, len(copy.blocks)) for copy in copies] == [(True, 4), (False, 6)]
    warm = host.rank()
    assert warm.ask("warm", PROMPT, max_output_tokens=1) == cold
    assert warm.from_host["warm"] == NUM_FULL * BLOCK_SIZE
    assert rank.ask("again", PROMPT, max_output_tokens=1) == cold
    assert rank.from_host["again"] == 3 * BLOCK_SIZE


def test_one_load_serves_all_who_wait_for_it() -> None:
    host = Host()
    host.rank().ask("cold", PROMPT)
    rank = host.rank(copy_steps=3)
    for name in ("a", "b", "c"):
        rank.submit(name, PROMPT)
    rank.run()
    assert directions(rank).count("promote") == 1
    assert rank.cached == dict.fromkeys("abc", NUM_FULL * BLOCK_SIZE)
    assert sorted(rank.from_host.values()) == [0, 0, NUM_FULL * BLOCK_SIZE]


def test_others_are_computed_while_a_copy_is_on() -> None:
    host = Host()
    host.rank().ask("cold", PROMPT)
    rank = host.rank(copy_steps=4)
    rank.submit("warm", PROMPT)
    rank.submit("busy", OTHERS[0][:9], max_output_tokens=12)
    rank.step()
    assert [copy.direction for copy in rank.plans[-1].copies] == ["promote"]
    assert rank.plans[-1].num_tokens == 9
    assert "warm" not in rank.cached  # told only once it is known what comes of it
    for _ in range(4):
        rank.step()
    assert not any(plan.awaits_copy for plan in rank.plans)
    assert "warm" in rank.cached
    rank.run()


def test_with_nothing_else_to_compute_a_plan_awaits_the_copy() -> None:
    host = Host()
    host.rank().ask("cold", PROMPT)
    rank = host.rank(copy_steps=1_000)
    rank.submit("warm", PROMPT)
    rank.step()
    assert rank.plans[-1].awaits_copy
    assert rank.cached == {"warm": NUM_FULL * BLOCK_SIZE}


def test_a_large_copy_is_cut_into_pieces() -> None:
    host = Host()
    cold = host.rank(chunk_blocks=2).ask("cold", PROMPT)
    rank = host.rank(chunk_blocks=2, copy_steps=1_000)
    assert rank.ask("warm", PROMPT) == cold
    pieces = [len(copy.blocks) for plan in rank.plans for copy in plan.copies if copy.direction == "promote"]
    assert pieces == [2, 2, 2, 2, 1]


def test_a_turn_aborted_during_its_copy_keeps_its_blocks_until_that_ends() -> None:
    host = Host()
    cold = host.rank().ask("cold", PROMPT)
    rank = host.rank(copy_steps=3)
    rank.submit("warm", PROMPT)
    rank.submit("busy", OTHERS[0][:9], max_output_tokens=12)
    rank.step()
    rank.scheduler.abort(RequestId("warm"))
    held = rank.scheduler.stats().blocks_held
    rank.step()
    assert rank.scheduler.stats().blocks_held == held
    assert rank.scheduler.has_copies
    rank.run()
    assert rank.ends["warm"] == ["aborted"]
    assert rank.ask("again", PROMPT) == cold
    assert rank.from_host["again"] == 0  # what came up stayed
    assert rank.cached["again"] == NUM_FULL * BLOCK_SIZE
    host.check_at_rest()


def test_a_turn_preempted_during_its_copy_starts_again() -> None:
    host = Host(limits=make_limits(num_blocks=22))
    cold = host.rank().ask("cold", PROMPT)
    rank = host.rank(copy_steps=30, reserve=0)
    rank.submit("grows", OTHERS[0][:36], max_output_tokens=30)
    while not rank.output.get("grows"):
        rank.step()
    rank.submit("warm", PROMPT)
    rank.run()
    assert rank.scheduler.stats().preemptions_total > 0
    assert rank.output["warm"] == cold
    assert rank.output["grows"] == expected_output(
        rank.limits, make_submit("grows", OTHERS[0][:36], max_output_tokens=30)
    )
    host.check_at_rest()


def test_a_wrong_checksum_switches_the_tier_off_and_the_turn_is_computed() -> None:
    host = Host()
    cold = host.rank().ask("cold", PROMPT)
    rank = host.rank(copy_steps=2)
    rank.executor.corrupt_next_promotion = True
    assert rank.ask("warm", PROMPT) == cold
    assert rank.cached["warm"] == rank.from_host["warm"] == 0
    stats = rank.scheduler.stats()
    assert "checksum" in stats.host_tier
    assert stats.promoted_blocks_total == 0
    assert host.index.off_reason == stats.host_tier
    host.check_at_rest()
    other = host.rank()
    assert other.ask("there too", PROMPT) == cold
    assert "checksum" in other.scheduler.stats().host_tier


@pytest.mark.parametrize("num_steps", range(8))
def test_serving_goes_on_without_host_memory_whenever_it_is_lost(num_steps: int) -> None:
    host = Host()
    cold = host.rank().ask("cold", PROMPT)
    rank = host.rank(copy_steps=2)
    rank.submit("warm", PROMPT)
    rank.submit("other", OTHERS[0][:20], max_output_tokens=3)
    for _ in range(num_steps):
        rank.step()
    tier_of(rank).lost = "no answer within 1 s"
    rank.run()
    evict_all(rank)
    assert rank.output["warm"] == cold
    assert rank.scheduler.stats().host_tier == "no answer within 1 s"


def test_what_came_up_while_the_tier_was_lost_is_not_read() -> None:
    host = Host(num_slots=25)
    cold = host.rank().ask("cold", PROMPT)
    rank = host.rank(copy_steps=9)
    rank.submit("warm", PROMPT)
    rank.submit("busy", OTHERS[0][:9], max_output_tokens=12)
    rank.step()
    tier_of(rank).lose("gone")
    host.rank().ask("takes all slots", OTHERS[1], max_output_tokens=1)
    rank.run()
    assert directions(rank)[0] == "promote"
    assert rank.output["warm"] == cold
    assert rank.from_host["warm"] == 0
    host.check_at_rest()


def test_after_a_loss_nobody_is_asked_but_to_take_leases_back() -> None:
    host = Host()
    rank = host.rank()
    tier_of(rank).lost = "gone"
    rank.ask("first", PROMPT)
    assert tier_of(rank).num_calls == 1
    evict_all(rank)
    assert tier_of(rank).num_calls == 1


def test_a_turn_waits_for_a_slower_tier_and_holds_up_nobody() -> None:
    rank = Host().rank()
    tier_of(rank).num_waits = 3
    rank.submit("from disk", PROMPT)
    rank.step()
    assert rank.cached == {}
    tier_of(rank).num_waits = 2
    rank.scheduler.take_events()
    rank.submit("passes by", PROMPT[:3], max_output_tokens=2)
    tier_of(rank).num_waits = 5
    rank.step()
    rank.step()
    rank.run()
    assert rank.ends == {"from disk": ["length"], "passes by": ["length"]}


def test_a_slower_tier_that_never_ends_is_not_waited_for_forever() -> None:
    rank = Host().rank()
    tier_of(rank).num_waits = 1_000_000
    rank.ask("first", PROMPT)
    assert rank.now_s > 60
    assert rank.now_s < 100


def test_reading_again_where_it_is_cheaper_is_counted() -> None:
    host = Host()
    cold = host.rank().ask("cold", PROMPT)
    rank = host.rank()
    rank.executor.token_s = 0.001
    rank.executor._copies.block_s = 10.0
    rank.ask("measures both", PROMPT)
    assert rank.from_host["measures both"] > 0
    evict_all(rank)
    assert rank.ask("again", PROMPT) == cold
    assert rank.from_host["again"] == 0
    stats = rank.scheduler.stats()
    assert stats.skipped_promotions_total > 0
    assert stats.promote_s_total > 0
    host.check_at_rest()
    stubborn = host.rank(promote="always")
    stubborn.executor.token_s, stubborn.executor._copies.block_s = 0.001, 10.0
    for name in ("measures", "again"):
        stubborn.ask(name, PROMPT)
        assert stubborn.from_host[name] > 0
        evict_all(stubborn)


def test_the_room_of_what_waits_to_go_down_is_given_to_a_turn() -> None:
    host = Host(limits=make_limits(num_blocks=26))
    rank = host.rank(copy_steps=50)
    rank.submit("first", OTHERS[0][:40], max_output_tokens=1)
    rank.submit("second", OTHERS[1][:40], max_output_tokens=1)
    while len(rank.ends) < 2:
        rank.step()
    rank.submit("third", OTHERS[2][:100], max_output_tokens=1)
    rank.run()
    assert rank.ends["third"] == ["length"]
    host.check_at_rest()


def test_a_turn_without_the_cache_asks_for_nothing_and_leaves_nothing() -> None:
    host = Host()
    rank = host.rank()
    rank.ask("private", PROMPT, use_cache=False)
    assert tier_of(rank).num_calls == 0
    assert host.index.occupancy().empty == host.num_slots


def test_where_host_memory_has_no_room_nothing_is_copied_and_serving_goes_on() -> None:
    host = Host(num_slots=3)
    rank = host.rank()
    cold = rank.ask("cold", PROMPT)
    evict_all(rank)
    assert rank.ask("again", PROMPT) == cold
    assert directions(rank) == []
    host.check_at_rest()


def test_a_name_whose_parent_left_host_memory_goes_down_with_all_that_stands_before() -> None:
    host = Host(num_slots=20)
    rank = host.rank()
    answer = rank.ask("first", PROMPT)
    host.index.drop([BlockHash(event.names[:HASH_BYTES]) for event in host.index.contents()])
    grown = [*PROMPT, *answer, 1, 2, 3, 4, 5]
    rank.ask("second", grown, max_output_tokens=1)
    warm = host.rank()
    warm.ask("warm", grown, max_output_tokens=1)
    assert warm.from_host["warm"] == (len(grown) - 1) // BLOCK_SIZE * BLOCK_SIZE


def test_events_rebuild_what_device_memory_holds() -> None:
    host = Host()
    rank = host.rank(demote="eviction")
    for round_number in range(2):
        rank.ask(f"first {round_number}", PROMPT)
        evict_all(rank)
    known: dict[bytes, bytes] = {}
    reasons = set()
    for event in rank.cache_events:
        names = [event.names[at : at + 16] for at in range(0, len(event.names), 16)]
        reasons.add((event.kind, event.reason))
        if event.kind == "stored":
            for parent, name in zip([event.parent, *names], names, strict=False):
                assert name not in known
                known[name] = parent
        else:
            for name in names:
                del known[name]
    assert set(known) == set(rank.scheduler.cache._by_name)
    roots = {parent for parent in known.values() if parent not in known}
    assert len(roots) == 1
    assert reasons == {("stored", "computed"), ("stored", "promoted"), ("evicted", "room")}
    rank.scheduler.cache.clear()
    assert rank.scheduler.take_cache_events()[-1].reason == "cleared"


def test_stats_tell_what_was_moved() -> None:
    host = Host()
    rank = host.rank()
    assert rank.scheduler.stats().host_tier == "on"
    assert Rank().scheduler.stats().host_tier == ""
    rank.ask("cold", PROMPT)
    evict_all(rank)
    rank.ask("warm", PROMPT)
    stats = rank.scheduler.stats()
    block_bytes = rank.limits.layout.bytes_per_block
    assert stats.promoted_blocks_total == NUM_FULL
    assert stats.promoted_bytes_total == NUM_FULL * block_bytes
    assert stats.demoted_bytes_total == stats.demoted_blocks_total * block_bytes
    assert stats.host_tokens_total == NUM_FULL * BLOCK_SIZE
    assert stats.copies_in_flight == 0
