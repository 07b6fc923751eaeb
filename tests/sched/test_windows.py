"""Turns over layers with a window: where they go on, what they hold, and that every window is right,
which the scripted executor proves before each step."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepwarm.cache.window_pool import SNAPSHOT_EVERY_WINDOWS, WindowPool
from keepwarm.core.errors import BadSetting
from keepwarm.core.ids import RequestId
from keepwarm.core.layout import window_needs
from keepwarm.core.rank_messages import Submit
from keepwarm.sched.scheduler import SchedulerSettings
from tests.sched.driver import BLOCK_SIZE, Rank, expected_output, make_limits, make_submit

WINDOW = 11  # reaches into three blocks
WINDOW_BLOCKS = 3
BUDGET = 8
ONE_TURN = WINDOW_BLOCKS + 3 + 3 * BUDGET // BLOCK_SIZE
"""The fewest window blocks that a rank can run on."""


def make_rank(*, num_window_blocks: int, num_blocks: int = 400, depth: int = 1, reserve: int = 8) -> Rank:
    return Rank(
        limits=make_limits(
            num_blocks=num_blocks,
            max_num_seqs=3,
            max_model_len=1000,
            window_tokens=WINDOW,
            num_window_blocks=num_window_blocks,
        ),
        settings=SchedulerSettings(max_num_batched_tokens=BUDGET, output_reserve_tokens=reserve),
        depth=depth,
    )


def pool_of(rank: Rank) -> WindowPool:
    pool = rank.scheduler.cache.windows
    assert pool is not None
    return pool


def tokens(count: int, seed: int = 1) -> list[int]:
    return random.Random(seed).choices(range(8, 32), k=count)


def test_a_long_turn_runs_on_the_blocks_of_one_window() -> None:
    rank = make_rank(num_window_blocks=ONE_TURN)
    rank.ask("long", tokens(900))
    assert pool_of(rank).num_blocks * BLOCK_SIZE < 50


def test_the_next_turn_goes_on_where_the_last_one_ended() -> None:
    rank = make_rank(num_window_blocks=ONE_TURN + 4 * WINDOW_BLOCKS)
    conversation = tokens(100)
    for turn in range(6):
        num_known = len(conversation)
        conversation += [*rank.ask(f"t{turn}", conversation, max_output_tokens=30), *tokens(5, seed=turn)]
        expected = 0 if turn == 0 else (num_known - 6) // BLOCK_SIZE * BLOCK_SIZE
        assert rank.cached[f"t{turn}"] == expected


@pytest.mark.parametrize("num_prompt", range(28, 53))
def test_the_same_prompt_again_goes_on_before_its_last_token(num_prompt: int) -> None:
    rank = make_rank(num_window_blocks=ONE_TURN + 4 * WINDOW_BLOCKS)
    answer = rank.ask("first", tokens(num_prompt), max_output_tokens=60)
    assert rank.ask("again", tokens(num_prompt), max_output_tokens=60) == answer
    assert rank.cached["again"] == (num_prompt - 1) // BLOCK_SIZE * BLOCK_SIZE


def test_a_turn_that_goes_on_elsewhere_computes_a_bounded_part_again_and_it_is_counted() -> None:
    every = SNAPSHOT_EVERY_WINDOWS * WINDOW_BLOCKS * BLOCK_SIZE  # tokens
    rank = make_rank(num_window_blocks=ONE_TURN + 8 * WINDOW_BLOCKS, num_blocks=800)
    prompt = tokens(3 * every)
    rank.ask("whole", prompt)
    counted = rank.scheduler.cache.counters.replayed_blocks
    assert counted == 0
    for num_kept in (every - 1, every, every + 1, every + WINDOW, 2 * every + 90, 3 * every - 2):
        name = f"rewound to {num_kept}"
        rank.ask(name, [*prompt[:num_kept], *tokens(9, seed=num_kept)])
        known = num_kept // BLOCK_SIZE * BLOCK_SIZE
        assert known - every < rank.cached[name] <= known
        counted += (known - rank.cached[name]) // BLOCK_SIZE
    assert rank.scheduler.stats().replayed_tokens_total == counted * BLOCK_SIZE > 0


def test_turns_that_would_lack_windows_wait_and_are_not_preempted() -> None:
    rank = make_rank(num_window_blocks=ONE_TURN + WINDOW_BLOCKS + 3)  # two at a time
    for number in range(3):
        rank.submit(f"t{number}", tokens(60, seed=number), max_output_tokens=20)
    most_running = 0
    for _ in range(80):
        rank.step()
        most_running = max(most_running, rank.scheduler.stats().running)
    rank.run()
    assert (most_running, rank.scheduler.stats().preemptions_total) == (2, 0)
    assert rank.ends == {f"t{number}": ["length"] for number in range(3)}


def test_windows_that_do_not_hold_one_turns_steps_are_refused() -> None:
    with pytest.raises(BadSetting, match=r"--max-num-batched-tokens 8: the 11 blocks .* of 11 tokens"):
        make_rank(num_window_blocks=ONE_TURN - 1)


def test_how_many_sequences_never_lack_a_window_block() -> None:
    needs = window_needs(WINDOW, BLOCK_SIZE, max_num_batched_tokens=BUDGET)
    assert needs.least == ONE_TURN
    counts = (0, ONE_TURN - 1, ONE_TURN, ONE_TURN + WINDOW_BLOCKS + 3)
    assert [needs.most_sequences(count) for count in counts] == [0, 0, 1, 2]


operations = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(0, 2), st.floats(0.0, 1.0), st.integers(1, 60)),
        st.tuples(st.just("step"), st.integers(1, 30)),
        st.tuples(st.just("abort"), st.integers(0, 20)),
    ),
    min_size=3,
    max_size=14,
)


@settings(max_examples=150, deadline=None)
@given(
    operations=operations,
    depth=st.sampled_from([1, 2]),
    num_blocks=st.sampled_from([60, 90, 400]),
    num_beside=st.sampled_from([0, 6, 12, 40]),
    reserve=st.sampled_from([0, 8]),
)
def test_conversations_that_grow_rewind_and_fork_read_only_right_windows(
    operations: list[tuple[object, ...]], depth: int, num_blocks: int, num_beside: int, reserve: int
) -> None:
    rank = make_rank(
        num_window_blocks=ONE_TURN + num_beside, num_blocks=num_blocks, depth=depth, reserve=reserve
    )
    conversations = [tokens(40), tokens(40), tokens(40, seed=2)]
    submits: list[Submit] = []
    aborted: set[str] = set()
    for operation in operations:
        match operation:
            case ("ask", int(which), float(share), int(more)):
                before = conversations[which]
                kept = before[: int(len(before) * share)] if share < 0.5 else before
                prompt = [*kept, *tokens(more, seed=len(submits))][:180]
                name = f"r{len(submits)}"
                submits.append(make_submit(name, prompt, max_output_tokens=more))
                rank.scheduler.submit(submits[-1])
                if more % 3:
                    rank.run()
                conversations[which] = [*prompt, *rank.output.get(name, [])]
            case ("step", int(count)):
                for _ in range(count):
                    rank.step()
                    rank.scheduler.check_integrity()
            case ("abort", int(index)):
                rank.scheduler.abort(RequestId(f"r{index}"))
                aborted.add(f"r{index}")
    rank.run()
    pool = pool_of(rank)
    assert (pool.num_holdings, pool.num_cached + pool.num_empty) == (0, pool.num_blocks)
    for submit in submits:
        if submit.request_id not in aborted:
            assert rank.output[submit.request_id] == expected_output(
                make_limits(num_blocks=400, max_model_len=1000), submit
            )
