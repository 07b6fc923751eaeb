"""A turn's grammar on its way to the executor."""

from __future__ import annotations

import msgspec

from keepwarm.core.grammar import Grammar
from keepwarm.core.ids import RequestId
from tests.sched.driver import Rank, make_limits, make_submit

GRAMMAR = Grammar(kind="regex", source="a+", field="response_format")


def test_a_grammar_goes_down_once_a_start_and_never_with_a_step() -> None:
    rank = Rank()
    rank.scheduler.submit(msgspec.structs.replace(make_submit("turn", [1, 2, 3]), grammar=GRAMMAR))
    rank.step()
    assert rank.executor.grammars == {RequestId("turn"): GRAMMAR}
    rank.run()
    starts = [start for plan in rank.plans for start in plan.starts]
    assert [start.grammar for start in starts] == [GRAMMAR]
    assert rank.executor.grammars == {}
    assert rank.scheduler.stats().constrained_turns_total == 1


def test_a_preempted_turn_takes_its_grammar_along() -> None:
    rank = Rank(limits=make_limits(num_blocks=9, max_model_len=36))
    for number in range(3):
        submit = make_submit(f"turn {number}", [number] * 8, max_output_tokens=12)
        rank.scheduler.submit(msgspec.structs.replace(submit, grammar=GRAMMAR))
    rank.run()
    assert rank.scheduler.stats().preemptions_total > 0
    starts = [start for plan in rank.plans for start in plan.starts]
    assert len(starts) > 3
    assert {start.grammar for start in starts} == {GRAMMAR}
    assert any(len(start.tokens) > start.num_prompt_tokens for start in starts)
    assert rank.scheduler.stats().constrained_turns_total == 3
