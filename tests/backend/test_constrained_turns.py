"""Constrained and free turns through a rank's loop, with a tiny model: forms kept, nobody else disturbed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from keepwarm.backend.rank_engine import RankEngine
from keepwarm.core.grammar import Grammar, Vocabulary
from keepwarm.core.hashing import BlockHasher
from keepwarm.core.ids import RequestId, token_ids
from keepwarm.core.rank_messages import Abort, Ended, Submit, Tokens
from keepwarm.core.sampling import Sampling, TokenLogprobs
from keepwarm.sched.scheduler import Scheduler, SchedulerSettings
from tests.engine.conftest import tiny_model as tiny_model  # the fixture

pytest.importorskip("torch")
pytest.importorskip("xgrammar")

from keepwarm.engine.settings import EngineSettings
from keepwarm.engine.torch_executor import TorchExecutor, build_torch_executor
from tests.engine.test_torch_executor import prompt
from tests.engine.tiny_vocabulary import STOP, VOCABULARY, text_of

pytestmark = pytest.mark.engine

WAIT_S = 60.0
TinyModel = Callable[[str], Path]

CITY = Grammar(
    kind="regex",
    source=r'\{"city": "(Rome|Bern)", "days": \[[123](, [123]){1,4}\], "sure": (true|false)\}',
    field="response_format",
)
"""JSON without a choice of white space, in which a random model would lose itself."""


class Rank:
    """One engine loop, told what to do and listened to."""

    def __init__(
        self,
        folder: Path,
        *,
        depth: int = 1,
        num_blocks: int | None = None,
        load_vocabulary: Callable[[], Vocabulary] = lambda: VOCABULARY,
    ) -> None:
        settings = EngineSettings(
            model_path=str(folder), block_size=4, max_num_seqs=8, device_cache_gb=0.02, num_threads=1
        )
        built, _ = build_torch_executor(settings, load_vocabulary=load_vocabulary)
        self.executor = cast(TorchExecutor, built)
        limits = self.executor.limits
        if num_blocks is not None:
            limits = replace(limits, num_blocks=num_blocks)
        self.scheduler = Scheduler(
            limits=limits,
            hasher=BlockHasher(key=bytes(32), block_size=4),
            settings=SchedulerSettings(max_num_batched_tokens=24, output_reserve_tokens=4),
        )
        self.engine = RankEngine(scheduler=self.scheduler, executor=self.executor, max_steps_in_flight=depth)
        self.tokens: dict[str, list[int]] = {}
        self.logprobs: dict[str, list[TokenLogprobs]] = {}
        self.ends: dict[str, Ended] = {}

    def submit(self, name: str, tokens: list[int], **options: Any) -> None:
        values: dict[str, Any] = {
            "max_output_tokens": 120,
            "stop_tokens": (STOP,),
            "sampling": Sampling(temperature=0.0),
        } | options
        self.tokens[name] = []
        self.engine.handle(
            Submit(
                request_id=RequestId(name),
                tokens=token_ids(tokens).tobytes(),
                block_hashes=b"",
                root=bytes(16),
                use_cache=False,
                **values,
            )
        )

    def run(self) -> None:
        """Until everybody has ended."""
        give_up_at_s = time.monotonic() + WAIT_S
        while len(self.ends) < len(self.tokens):
            assert time.monotonic() < give_up_at_s
            self.engine.step(lambda report: self._hear(report.events))
            self._hear(self.engine.report().events)
        self.scheduler.check_integrity()

    def _hear(self, events: Any) -> None:
        for event in events:
            match event:
                case Tokens():
                    self.tokens[event.request_id] += event.tokens
                    self.logprobs.setdefault(event.request_id, []).extend(event.logprobs)
                case Ended():
                    assert event.request_id not in self.ends
                    self.ends[event.request_id] = event

    def answer(self, name: str) -> Any:
        assert self.ends[name].reason == "stop"
        return json.loads(text_of(self.tokens[name]))


def is_city(answer: Any) -> bool:
    return (
        list(answer) == ["city", "days", "sure"]
        and answer["city"] in ("Rome", "Bern")
        and 2 <= len(answer["days"]) <= 5
    )


SAMPLINGS = [
    Sampling(temperature=0.0),
    Sampling(temperature=1.0, seed=1),
    Sampling(temperature=1.5, seed=2, top_k=5),
    Sampling(temperature=1.5, seed=3, top_p=0.8, min_p=0.05),
]


@pytest.mark.parametrize("depth", [1, 2])
def test_constrained_and_free_turns_together_say_what_each_says_alone(
    depth: int, tiny_model: TinyModel
) -> None:
    folder = tiny_model("llama")
    free = {f"free {i}": Sampling(temperature=0.9, seed=i) for i in range(2)}
    forced = {f"forced {i}": sampling for i, sampling in enumerate(SAMPLINGS)}
    alone: dict[str, list[int]] = {}
    for name, sampling in (free | forced).items():
        rank = Rank(folder)
        options: dict[str, Any] = {"grammar": CITY} if name in forced else {"max_output_tokens": 40}
        rank.submit(name, prompt(11, seed=3), sampling=sampling, **options)
        rank.run()
        alone[name] = rank.tokens[name]
    together = Rank(folder, depth=depth)
    for name, sampling in (free | forced).items():
        options = {"grammar": CITY} if name in forced else {"max_output_tokens": 40}
        together.submit(name, prompt(11, seed=3), sampling=sampling, **options)
    together.run()
    assert together.tokens == alone
    assert all(is_city(together.answer(name)) for name in forced)
    assert len({tuple(alone[name]) for name in forced}) > 1
    assert together.scheduler.stats().constrained_turns_total == len(forced)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_preempted_turn_goes_on_where_its_form_was(depth: int, tiny_model: TinyModel) -> None:
    folder = tiny_model("llama")
    roomy, tight = Rank(folder, depth=depth), Rank(folder, depth=depth, num_blocks=34)
    for rank in (roomy, tight):
        for number in range(4):
            sampling = Sampling(temperature=1.0, seed=number)
            rank.submit(f"forced {number}", prompt(9, seed=number), grammar=CITY, sampling=sampling)
        rank.run()
    assert roomy.scheduler.stats().preemptions_total == 0
    assert tight.scheduler.stats().preemptions_total > 0
    assert tight.tokens == roomy.tokens
    assert all(is_city(tight.answer(name)) for name in tight.tokens)


def test_log_probabilities_stay_those_of_the_model(tiny_model: TinyModel) -> None:
    rank = Rank(tiny_model("llama"))
    asked = Sampling(temperature=0.0, num_logprobs=20)
    rank.submit("free", prompt(11, seed=3), sampling=asked, max_output_tokens=1)
    rank.submit("forced", prompt(11, seed=3), sampling=asked, grammar=CITY)
    rank.run()
    [free], forced = rank.logprobs["free"], rank.logprobs["forced"]
    assert forced[0].top == free.top
    assert forced[0].logprob < free.logprob
    assert len(forced) == len(rank.tokens["forced"])


def test_an_answer_cut_by_its_limit_may_be_incomplete(tiny_model: TinyModel) -> None:
    rank = Rank(tiny_model("llama"))
    rank.submit("cut", prompt(5, seed=1), grammar=CITY, max_output_tokens=3)
    rank.run()
    assert rank.ends["cut"].reason == "length"
    assert len(rank.tokens["cut"]) == 3


def test_a_form_that_cannot_be_enforced_ends_its_turn_before_it_begins(tiny_model: TinyModel) -> None:
    rank = Rank(tiny_model("llama"))
    wrong = Grammar(kind="json_schema", source='{"type": "nonsense"}', field="response_format")
    rank.submit("wrong", prompt(5, seed=1), grammar=wrong)
    rank.submit("free", prompt(5, seed=1), max_output_tokens=3)
    rank.run()
    error = rank.ends["wrong"].error
    assert rank.ends["wrong"].reason == "failed"
    assert error is not None
    assert error.code == "bad_request"
    assert "nonsense" in str(error.fields["message"])
    assert rank.tokens["wrong"] == []
    assert rank.ends["free"].reason == "length"


@pytest.mark.parametrize("depth", [1, 2])
def test_a_form_that_leads_nowhere_fails_its_turn_alone(depth: int, tiny_model: TinyModel) -> None:
    """No token of this vocabulary spells the second half of the letter."""
    rank = Rank(tiny_model("llama"), depth=depth)
    rank.submit("stuck", prompt(5, seed=1), grammar=Grammar(kind="regex", source="ab\u00ff", field="regex"))
    rank.submit("free", prompt(5, seed=1), max_output_tokens=9)
    rank.run()
    error = rank.ends["stuck"].error
    assert rank.ends["stuck"].reason == "failed"
    assert error is not None
    assert error.code == "bad_request"
    assert "after 3 tokens" in str(error.fields["message"])
    assert rank.ends["free"].reason == "length"


@pytest.mark.parametrize("depth", [1, 2])
def test_a_complete_form_ends_the_turn_of_a_model_without_a_stop_token(
    depth: int, tiny_model: TinyModel
) -> None:
    without_stop = replace(VOCABULARY, stop_tokens=frozenset())
    rank = Rank(tiny_model("llama"), depth=depth, load_vocabulary=lambda: without_stop)
    rank.submit("done", prompt(5, seed=1), grammar=CITY, stop_tokens=())
    rank.run()
    assert is_city(rank.answer("done"))


def test_a_turn_whose_form_is_being_compiled_holds_nobody_up_and_can_be_aborted(
    tiny_model: TinyModel,
) -> None:
    may_load = threading.Event()

    def load() -> Vocabulary:
        assert may_load.wait(WAIT_S)
        return VOCABULARY

    rank = Rank(tiny_model("llama"), load_vocabulary=load)
    rank.submit("aborted", prompt(5, seed=1), grammar=CITY)
    rank.submit("waits", prompt(5, seed=1), grammar=CITY)
    rank.submit("free", prompt(5, seed=1), max_output_tokens=3)
    rank.engine.handle(Abort(request_id=RequestId("aborted")))
    while "free" not in rank.ends:
        rank.engine.step(lambda report: rank._hear(report.events))
        rank._hear(rank.engine.report().events)
    assert rank.ends["aborted"].reason == "aborted"
    assert "waits" not in rank.ends
    assert rank.engine.has_work
    may_load.set()
    rank.run()
    assert is_city(rank.answer("waits"))


def test_turns_that_wait_for_their_form_end_with_the_engine(tiny_model: TinyModel) -> None:
    may_load = threading.Event()

    def load() -> Vocabulary:
        assert may_load.wait(WAIT_S)
        return VOCABULARY

    rank = Rank(tiny_model("llama"), load_vocabulary=load)
    rank.submit("waits", prompt(5, seed=1), grammar=CITY)
    [ended] = rank.engine.fail_all(RuntimeError("out of order")).events
    assert isinstance(ended, Ended)
    assert ended.reason == "failed"
    assert not rank.engine.has_work
    may_load.set()
