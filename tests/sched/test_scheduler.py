"""The scheduler over the scripted executor: what is planned, shared, preempted and ended."""

from __future__ import annotations

import pytest

from keepwarm.core.errors import BadSetting
from keepwarm.core.ids import RequestId
from keepwarm.sched.scheduler import SchedulerSettings
from tests.sched.driver import BLOCK_SIZE, Rank, expected_output, make_limits, make_submit

PROMPT = [number % 32 for number in range(40)]


def test_a_second_turn_reads_only_what_is_new() -> None:
    rank = Rank()
    answer = rank.ask("first", PROMPT)
    rank.ask("second", [*PROMPT, *answer, 1, 2, 3])
    assert rank.cached["first"] == 0
    # the last answer token's KV is not computed, so the block it stands in is new
    assert rank.cached["second"] == (len(PROMPT) + len(answer) - 1) // BLOCK_SIZE * BLOCK_SIZE


def test_a_cached_answer_equals_the_cold_one() -> None:
    rank = Rank()
    cold = rank.ask("cold", PROMPT, use_cache=False)
    rank.ask("fill", PROMPT)
    assert rank.ask("warm", PROMPT) == cold
    assert rank.cached["warm"] > 0


def test_the_last_prompt_token_is_always_computed() -> None:
    rank = Rank()
    prompt = PROMPT[: 4 * BLOCK_SIZE]
    first = rank.ask("first", prompt)
    assert rank.ask("again", prompt) == first
    assert rank.cached["again"] == 3 * BLOCK_SIZE


def test_a_bypassed_turn_neither_takes_nor_leaves_anything() -> None:
    rank = Rank()
    rank.ask("bypass", PROMPT, use_cache=False)
    assert rank.scheduler.stats().blocks_cached == 0
    rank.ask("normal", PROMPT)
    rank.ask("bypass again", PROMPT, use_cache=False)
    assert rank.cached["bypass again"] == 0


def test_tenants_do_not_share_prefixes() -> None:
    rank = Rank()
    rank.ask("a", PROMPT, tenant="a")
    rank.ask("b", PROMPT, tenant="b")
    assert rank.cached["b"] == 0


def test_a_long_prompt_is_read_in_chunks_while_others_decode() -> None:
    rank = Rank()
    rank.submit("short", [1, 2, 3], max_output_tokens=8)
    rank.step()
    rank.submit("long", PROMPT)
    rank.step()
    works = sorted(work.end - work.start for work in rank.plans[-1].works)
    assert works == [1, 15]
    assert all(plan.num_tokens <= 16 for plan in rank.plans)
    rank.run()


def test_a_stop_token_ends_the_turn_and_is_not_told() -> None:
    limits = make_limits()
    full = expected_output(limits, make_submit("x", PROMPT))
    stop = full[3]
    rank = Rank()
    assert rank.ask("x", PROMPT, stop_tokens=(stop,)) == full[: full.index(stop)]
    assert rank.ends["x"] == ["stop"]


def test_max_output_tokens_ends_the_turn_as_length() -> None:
    rank = Rank(depth=2)
    assert len(rank.ask("x", PROMPT, max_output_tokens=5)) == 5
    assert rank.ends["x"] == ["length"]


def test_waiting_for_a_prefix_that_is_being_read_beats_reading_it_twice() -> None:
    rank = Rank(limits=make_limits(num_blocks=128))
    rank.submit("one", [*PROMPT, 1])
    rank.submit("two", [*PROMPT, 2])
    rank.run()
    assert rank.cached["two"] == 40
    assert rank.scheduler.stats().computed_tokens_total < 2 * 41


def test_who_computed_a_prefix_twice_ends_up_sharing_one_copy() -> None:
    rank = Rank()
    prompt = PROMPT[:7]
    rank.submit("one", [*prompt, 9, 9])
    rank.step()
    rank.submit("two", [*prompt, 9, 9, 9, 9, 9])
    rank.run()
    assert rank.output["one"] == expected_output(rank.limits, make_submit("one", [*prompt, 9, 9]))
    rank.scheduler.check_integrity()


def test_a_start_s_block_table_stays_as_it_was_planned() -> None:
    prompt = PROMPT[:7]
    answer = expected_output(make_limits(), make_submit("x", prompt, max_output_tokens=12))
    rank = Rank()
    rank.submit("writes", prompt, max_output_tokens=12)
    rank.step()
    rank.submit("reads what the other writes", [*prompt, *answer[:8]])
    rank.step()
    planned = [start.blocks.tolist() for plan in rank.plans for start in plan.starts]
    rank.run()
    assert rank.scheduler.cache.counters.replaced_blocks > 0
    assert [start.blocks.tolist() for plan in rank.plans for start in plan.starts] == planned


def test_more_turns_than_memory_holds_all_finish_as_if_alone() -> None:
    limits = make_limits(num_blocks=24, max_model_len=96)
    rank = Rank(limits=limits, settings=SchedulerSettings(max_num_batched_tokens=16, output_reserve_tokens=2))
    submits = [make_submit(f"t{n}", [n, *PROMPT[:20]], max_output_tokens=40) for n in range(6)]
    for submit in submits:
        rank.scheduler.submit(submit)
    rank.run()
    assert rank.scheduler.stats().preemptions_total > 0
    for submit in submits:
        assert rank.output[submit.request_id] == expected_output(limits, submit)
        assert rank.ends[submit.request_id] == ["length"]


def test_an_abort_gives_everything_back_once_its_step_is_collected() -> None:
    rank = Rank(depth=2)
    rank.submit("gone", PROMPT)
    rank.step()
    held = rank.scheduler.stats().blocks_held
    rank.scheduler.abort(RequestId("gone"))
    assert rank.scheduler.stats().blocks_held == held
    rank.run()
    assert rank.scheduler.stats().blocks_held == 0
    assert rank.ends["gone"] == ["aborted"]


def test_a_waiting_turn_can_be_aborted_and_an_unknown_id_is_ignored() -> None:
    rank = Rank()
    rank.submit("waits", PROMPT)
    rank.scheduler.abort(RequestId("waits"))
    rank.scheduler.abort(RequestId("waits"))
    rank.scheduler.abort(RequestId("never heard of"))
    rank.run()
    assert rank.ends["waits"] == ["aborted"]


def test_a_turn_that_can_never_fit_fails_at_once() -> None:
    rank = Rank(limits=make_limits(max_model_len=32))
    rank.submit("huge", PROMPT)
    assert rank.ends["huge"] == ["failed"]
    rank.run()


def test_end_all_ends_each_open_turn_once() -> None:
    rank = Rank()
    for number in range(6):
        rank.submit(f"t{number}", [number, *PROMPT])
    rank.step()
    rank.scheduler.end_all("aborted")
    rank.run()
    assert {tuple(ends) for ends in rank.ends.values()} == {("aborted",)}
    assert len(rank.ends) == 6


def test_a_prompt_and_its_reserve_are_one_run_of_blocks() -> None:
    rank = Rank(limits=make_limits(num_blocks=128))
    for number in range(3):
        rank.submit(f"t{number}", [number, *PROMPT])
    rank.run()
    starts = [start for plan in rank.plans for start in plan.starts]
    for start in starts:
        assert list(start.blocks) == list(range(start.blocks[0], start.blocks[0] + len(start.blocks)))


def test_a_budget_below_the_number_of_sequences_is_refused() -> None:
    with pytest.raises(BadSetting, match="--max-num-batched-tokens 2 is less than --max-num-seqs 4"):
        Rank(settings=SchedulerSettings(max_num_batched_tokens=2))
