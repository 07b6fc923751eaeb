from __future__ import annotations

from collections.abc import Sequence

from keepwarm.core.ids import TokenIds
from tests.sched.driver import Rank, make_limits

ANSWER_LENGTH = 40


def count_up(prompt: TokenIds) -> Sequence[int]:
    """Tells one prompt's answer from another's."""
    return [int(prompt[0]) * 1000 + number for number in range(ANSWER_LENGTH)]


def test_turns_that_are_preempted_go_on_with_their_answers_where_they_were() -> None:
    rank = Rank(limits=make_limits(num_blocks=24, max_num_seqs=3))
    rank.executor.answer_to = count_up
    for name in (1, 2, 3):
        rank.submit(str(name), [name] * 12, max_output_tokens=ANSWER_LENGTH)
    rank.run()
    assert rank.scheduler.stats().preemptions_total > 0
    for name in (1, 2, 3):
        assert rank.output[str(name)] == [name * 1000 + number for number in range(ANSWER_LENGTH)]


def test_an_answer_that_is_over_says_its_last_token_again() -> None:
    rank = Rank()
    rank.executor.answer_to = lambda _prompt: [5, 9]
    assert rank.ask("one", [1, 2, 3], max_output_tokens=4) == [5, 9, 9, 9]
