from __future__ import annotations

import pytest

from keepwarm.backend.answer import Answer, OutputLimit
from keepwarm.backend.scripted_words import ByteTurnWords
from keepwarm.chat.events import Accepted, Admitted, Failed, Finished, StopReason, TextDelta
from keepwarm.core import rank_messages
from keepwarm.core.cached_tokens import CachedTokens
from keepwarm.core.errors import EngineLost, to_wire
from keepwarm.core.ids import RequestId, token_ids
from keepwarm.core.rank_messages import Ended, EndReason, Tokens

NAME = RequestId("r")
ADMITTED = rank_messages.Admitted(request_id=NAME, cached_tokens=16)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def answer_of(*stops: str, asked_tokens: int | None = 5, clock: Clock | None = None) -> Answer:
    return Answer(
        words=ByteTurnWords(token_ids([1] * 20), stops, with_logprobs=False),
        limit=OutputLimit.within(10, asked_tokens=asked_tokens),
        received_at_s=100.0,
        clock=clock or Clock(),
    )


def said(text: str) -> Tokens:
    return Tokens(request_id=NAME, tokens=tuple(text.encode()))


def ended(reason: EndReason) -> Ended:
    return Ended(request_id=NAME, reason=reason)


def test_events_come_in_order_with_usage_and_times() -> None:
    clock = Clock()
    answer = answer_of(clock=clock)
    assert answer.accepted() == Accepted(prompt_tokens=20)
    clock.now_s = 101.0
    assert answer.take([ADMITTED]) == [Admitted(cached_tokens=16)]
    clock.now_s = 102.0
    assert answer.take([said("he")]) == [TextDelta(text="he")]
    clock.now_s = 103.0
    (finished,) = answer.take([ended("stop")])
    assert isinstance(finished, Finished)
    assert finished.reason == "end"
    usage, timings = finished.usage, finished.timings
    assert (usage.prompt_tokens, usage.cached_tokens, usage.output_tokens) == (20, 16, 2)
    assert (timings.admitted_s, timings.first_token_s, timings.total_s) == (1.0, 2.0, 3.0)


def test_cached_tokens_are_told_by_tier_when_it_begins_and_when_it_ends() -> None:
    answer = answer_of()
    admitted = rank_messages.Admitted(request_id=NAME, cached_tokens=16, host_tokens=12, disk_tokens=8)
    (begun,) = answer.take([admitted])
    (finished,) = answer.take([ended("stop")])
    assert begun == Admitted(cached_tokens=16, host_tokens=12, disk_tokens=8)
    assert isinstance(finished, Finished)
    assert begun.cached == finished.usage.cached == CachedTokens(l0=4, l1=4, disk=8)


@pytest.mark.parametrize(
    ("asked_tokens", "tokens", "reason"),
    [(5, 5, "max_tokens"), (10, 10, "max_tokens"), (11, 10, "context_full"), (None, 10, "context_full")],
)
def test_whose_limit_ended_it_is_told(asked_tokens: int | None, tokens: int, reason: StopReason) -> None:
    assert OutputLimit.within(10, asked_tokens=asked_tokens).tokens == tokens
    (finished,) = answer_of(asked_tokens=asked_tokens).take([ended("length")])
    assert isinstance(finished, Finished)
    assert finished.reason == reason


def test_a_stop_string_ends_it_and_says_where_to_cut() -> None:
    answer = answer_of("END")
    assert answer.take([said("well E")]) == [TextDelta(text="well ")]
    assert answer.cut_at is None
    (finished,) = answer.take([said("ND and more"), ended("stop")])
    assert isinstance(finished, Finished)
    assert (finished.reason, finished.stop_string) == ("stop_string", "END")
    assert answer.cut_at == finished.usage.output_tokens == 8


def test_what_was_held_back_is_said_at_the_end() -> None:
    text, finished = answer_of("END").take([said("EN"), ended("stop")])
    assert text == TextDelta(text="EN")
    assert isinstance(finished, Finished)
    assert (finished.reason, finished.stop_string) == ("end", None)


def test_a_stop_string_that_only_the_end_completes_still_counts() -> None:
    """The last byte begins a character that is never finished: U+FFFD, known only at the end."""
    answer = answer_of("�")
    (finished,) = answer.take([Tokens(request_id=NAME, tokens=(0xE2,)), ended("length")])
    assert isinstance(finished, Finished)
    assert (finished.reason, finished.stop_string) == ("stop_string", "�")


def test_nothing_is_told_after_the_end() -> None:
    answer = answer_of()
    assert len(answer.take([ended("stop"), said("x"), ended("failed")])) == 1
    assert answer.take([ended("stop")]) == []


def test_a_failure_carries_the_rank_s_error() -> None:
    error = to_wire(EngineLost("gone"))
    answer = answer_of()
    assert answer.take([Ended(request_id=NAME, reason="failed", error=error)]) == [Failed(error=error)]
    assert answer.outcome == "engine_lost"


def test_an_abort_that_its_client_did_not_ask_for_is_a_failure() -> None:
    (failed,) = answer_of().take([ended("aborted")])
    assert isinstance(failed, Failed)
    assert failed.error.code == "not_ready"
