"""Random submits, aborts, cuts and steps: nothing is lost, nothing is said twice, answers are right."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from keepwarm.core.ids import RequestId
from keepwarm.core.rank_messages import Submit
from keepwarm.sched.scheduler import SchedulerSettings
from tests.sched.driver import BLOCK_SIZE, Rank, expected_output, make_limits, make_submit

STEMS = ([1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 4, 5, 6, 7, 8, 20, 21, 22], [30])

prompts = st.tuples(st.sampled_from(STEMS), st.lists(st.integers(0, 3), min_size=0, max_size=30)).map(
    lambda pair: [*pair[0], *pair[1]]
)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), prompts, st.integers(1, 30), st.booleans()),
        st.tuples(st.just("step"), st.integers(1, 6)),
        st.tuples(st.just("abort"), st.integers(0, 20)),
        st.tuples(st.just("cut"), st.integers(0, 20)),
    ),
    max_size=40,
)


@settings(max_examples=120, deadline=None)
@given(
    operations=operations,
    depth=st.sampled_from([1, 2]),
    num_blocks=st.sampled_from([20, 26, 64]),
    reserve=st.sampled_from([0, 3, 16]),
    budget=st.sampled_from([3, 7, 64]),
    windows=st.sampled_from([None, (1, 10), (6, 16), (11, 20), (11, 80), (40, 40)]),
)
def test_after_any_history_everything_is_accounted_for(
    operations: list[tuple[object, ...]],
    depth: int,
    num_blocks: int,
    reserve: int,
    budget: int,
    windows: tuple[int, int] | None,
) -> None:
    """`windows`: the window of most layers, and their blocks beside those of steps in flight."""
    window_tokens, num_beside = windows or (None, 0)
    num_window_blocks = num_beside and num_beside + -(-3 * budget // BLOCK_SIZE)
    limits = make_limits(
        num_blocks=num_blocks,
        max_num_seqs=3,
        max_model_len=76,
        window_tokens=window_tokens,
        num_window_blocks=num_window_blocks,
    )
    rank = Rank(
        limits=limits,
        settings=SchedulerSettings(max_num_batched_tokens=budget, output_reserve_tokens=reserve),
        depth=depth,
    )
    submits: list[Submit] = []
    disturbed: set[str] = set()
    for operation in operations:
        match operation:
            case ("submit", list(prompt), int(max_output), bool(use_cache)):
                submit = make_submit(
                    f"r{len(submits)}", prompt, max_output_tokens=max_output, use_cache=use_cache
                )
                submits.append(submit)
                rank.scheduler.submit(submit)
            case ("step", int(count)):
                for _ in range(count):
                    rank.step()
                    rank.scheduler.check_integrity()
            case ("abort", int(index)):
                rank.scheduler.abort(RequestId(f"r{index}"))
                disturbed.add(f"r{index}")
            case ("cut", int(index)):
                rank.scheduler.cut(RequestId(f"r{index}"), 1)
                disturbed.add(f"r{index}")
    rank.run()
    occupancy = rank.scheduler.cache.occupancy()
    assert occupancy.held == 0
    assert occupancy.cached + occupancy.empty == num_blocks
    if (pool := rank.scheduler.cache.windows) is not None:
        assert (pool.num_holdings, pool.num_cached + pool.num_empty) == (0, num_window_blocks)
    assert {name: len(ends) for name, ends in rank.ends.items()} == {s.request_id: 1 for s in submits}
    for submit in submits:
        if submit.request_id not in disturbed:
            assert rank.output[submit.request_id] == expected_output(make_limits(max_model_len=76), submit)
