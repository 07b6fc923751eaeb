"""The front over a scripted rank: order of events, limits, stops, ends, memory given back."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from keepwarm.backend.in_process_rank import InProcessRank
from keepwarm.backend.native import CacheNaming, NativeBackend
from keepwarm.backend.rank_group import RankGroup
from keepwarm.backend.rank_port import RankPort
from keepwarm.backend.rank_process import RankLimits
from keepwarm.backend.scripted_words import ByteTurnWords, ByteWords
from keepwarm.chat.events import Accepted, Admitted, ChatEvent, Failed, Finished, TextDelta
from keepwarm.chat.messages import Chat, Message, Text
from keepwarm.chat.request import ChatRequest
from keepwarm.core.errors import BadRequest, ContextTooLong, NotReady, from_wire
from keepwarm.core.ids import RequestId, TenantId
from keepwarm.core.restarts import RestartLimits
from keepwarm.core.sampling import GREEDY
from tests.backend.ports import (
    KEY,
    LONG_TOKENS,
    PATIENCE_S,
    in_process_group,
    in_process_rank,
    rank_process,
    scripted_settings,
)

TENANT = TenantId("t")


def say(text: str) -> Chat:
    return Chat(messages=(Message(role="user", parts=(Text(text=text),)),))


def request(name: str, text: str = "hello " * 20, **options: Any) -> ChatRequest:
    values: dict[str, Any] = {"max_output_tokens": 6, "sampling": GREEDY} | options
    return ChatRequest(request_id=RequestId(name), tenant=TENANT, chat=say(text), **values)


class RememberingWords(ByteWords):
    """Counts what was to be remembered; its answers hold as much broken markup as is set."""

    def __init__(self) -> None:
        self.num_remembered = 0
        self.num_malformed = 0

    def open_turn(self, request: ChatRequest) -> ByteTurnWords:
        words = super().open_turn(request)

        def remember() -> None:
            self.num_remembered += 1

        words.remember = remember  # type: ignore[method-assign]
        words.num_malformed = self.num_malformed
        return words


class Front:
    """A backend with what it was made of."""

    def __init__(self, ranks: RankPort | None = None) -> None:
        self.rank: InProcessRank = in_process_rank()
        self.words = RememberingWords()
        self.backend = NativeBackend(
            scripted_settings(),
            rank=ranks or self.rank,
            load_words=lambda: self.words,
            naming=CacheNaming(key=KEY, model_identity=b"scripted"),
        )

    async def ask(self, wanted: ChatRequest) -> list[ChatEvent]:
        async with asyncio.timeout(PATIENCE_S):
            return [event async for event in self.backend.chat(wanted)]

    async def until_all_is_released(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.rank.stats is None or self.rank.stats.blocks_held or self.rank.stats.running:
                await asyncio.sleep(0.001)


@pytest.fixture
async def front() -> AsyncIterator[Front]:
    made = Front()
    await made.backend.setup()
    yield made
    await made.backend.close()


async def test_an_answer_is_told_in_order_with_one_end(front: Front) -> None:
    events = await front.ask(request("a"))
    assert isinstance(events[0], Accepted)
    assert isinstance(events[1], Admitted)
    assert isinstance(events[-1], Finished)
    assert all(isinstance(event, TextDelta) for event in events[2:-1])
    assert events[-1].reason == "max_tokens"
    assert events[-1].usage.output_tokens == 6
    assert events[-1].usage.prompt_tokens == events[0].prompt_tokens


async def test_the_second_time_the_prompt_is_cached_and_the_answer_the_same(front: Front) -> None:
    cold, warm = await front.ask(request("a")), await front.ask(request("b"))
    bypassed = await front.ask(request("c", use_cache=False))
    texts = ["".join(e.text for e in events if isinstance(e, TextDelta)) for events in (cold, warm, bypassed)]
    ends = [events[-1] for events in (cold, warm, bypassed)]
    cached = [end.usage.cached_tokens for end in ends if isinstance(end, Finished)]
    assert texts[0] == texts[1] == texts[2]
    assert cached[0] == cached[2] == 0
    assert cached[1] > 100


async def test_a_prompt_that_fills_the_context_never_reaches_the_rank(front: Front) -> None:
    (failed,) = await front.ask(request("long", "x" * 70_000))
    assert isinstance(failed, Failed)
    error = from_wire(failed.error)
    assert isinstance(error, ContextTooLong)
    assert re.match(r"prompt is too long: \d+ tokens > 65536 maximum", str(error))
    assert 'outcome="context_too_long"} 1' in front.backend.metrics_text()
    assert front.rank.stats is None or front.rank.stats.prompt_tokens_total == 0


async def test_output_is_clamped_to_the_room_and_says_so(front: Front) -> None:
    events = await front.ask(request("full", "x" * 65_500, max_output_tokens=32_000))
    end = events[-1]
    assert isinstance(end, Finished)
    assert end.reason in ("context_full", "end")
    assert end.usage.prompt_tokens + end.usage.output_tokens <= 65_536


async def test_a_stop_string_ends_the_answer_before_it(front: Front) -> None:
    plain = await front.ask(request("plain", max_output_tokens=40))
    text = "".join(event.text for event in plain if isinstance(event, TextDelta))
    stop = text[10:12]
    events = await front.ask(request("cut", max_output_tokens=40, stop=(stop,)))
    end = events[-1]
    assert isinstance(end, Finished)
    assert (end.reason, end.stop_string) == ("stop_string", stop)
    sent = "".join(event.text for event in events if isinstance(event, TextDelta))
    assert sent == text[: text.index(stop)]
    await front.until_all_is_released()


async def test_closing_the_iterator_stops_the_work_in_every_phase(front: Front) -> None:
    for num_events in (1, 2, 4):
        wanted = request(f"gone{num_events}", max_output_tokens=LONG_TOKENS)
        async with aclosing(front.backend.chat(wanted)) as events:
            for _ in range(num_events):
                await anext(events)
    await front.until_all_is_released()
    assert 'outcome="aborted"} 3' in front.backend.metrics_text()


async def test_what_was_sent_is_remembered_however_it_ended(front: Front) -> None:
    await front.ask(request("whole"))
    assert front.words.num_remembered == 1
    async with aclosing(front.backend.chat(request("gone", max_output_tokens=LONG_TOKENS))) as events:
        for _ in range(4):
            await anext(events)
    assert front.words.num_remembered == 2


async def test_markup_that_could_not_be_read_is_counted_by_format(front: Front) -> None:
    assert "keepwarm_malformed_markup_total{" not in front.backend.metrics_text()
    front.words.num_malformed = 2

    await front.ask(request("a"))
    await front.ask(request("b"))

    assert 'keepwarm_malformed_markup_total{format="none"} 4.0' in front.backend.metrics_text()


async def test_shutdown_fails_open_answers_once(front: Front) -> None:
    heard: list[ChatEvent] = []
    started = asyncio.Event()

    async def listen() -> None:
        async for event in front.backend.chat(request("open", max_output_tokens=LONG_TOKENS)):
            heard.append(event)
            started.set()

    listening = asyncio.create_task(listen())
    async with asyncio.timeout(PATIENCE_S):
        await started.wait()
        await front.backend.close()
        await listening
    assert [isinstance(event, Failed) for event in heard].count(True) == 1
    assert isinstance(heard[-1], Failed)
    with pytest.raises(NotReady, match="shutting down"):
        await front.ask(request("late"))


async def test_what_is_nested_deeper_than_rendering_reaches_is_the_callers_mistake(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_deep(*_: object) -> int:
        raise RecursionError

    monkeypatch.setattr(front.words, "open_turn", too_deep)
    monkeypatch.setattr(front.words, "count_tokens", too_deep)
    events = await front.ask(request("deep"))
    assert isinstance(events[-1], Failed)
    assert isinstance(from_wire(events[-1].error), BadRequest)
    with pytest.raises(BadRequest, match="nested too deeply"):
        await front.backend.count_tokens(TENANT, say("count me"))


async def test_an_id_that_is_open_is_refused(front: Front) -> None:
    async with aclosing(front.backend.chat(request("twin", max_output_tokens=LONG_TOKENS))) as events:
        await anext(events)
        with pytest.raises(BadRequest, match="'twin' is already open"):
            await front.ask(request("twin"))


async def test_many_turns_some_dropped_leave_nothing_behind(front: Front) -> None:
    async def one(number: int) -> None:
        wanted = request(f"r{number}", f"turn {number % 5} " * 10, max_output_tokens=1 + number % 17)
        async with aclosing(front.backend.chat(wanted)) as events:
            async for _event in events:
                if number % 3 == 0:
                    return

    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(one(number) for number in range(60)))
    await front.until_all_is_released()
    assert "keepwarm_backend_requests_open 0" in front.backend.metrics_text()


async def test_counting_equals_the_prompt_s_length(front: Front) -> None:
    events = await front.ask(request("a", "count me"))
    assert isinstance(events[0], Accepted)
    assert await front.backend.count_tokens(TENANT, say("count me")) == events[0].prompt_tokens


async def test_the_ranks_caches_are_one_and_a_context_fits_into_each() -> None:
    front = Front(in_process_group())
    await front.backend.setup()
    told = front.backend.describe()
    await front.backend.close()
    assert told.num_ranks == 2
    assert told.cache_tokens == 2 * 15_258 * 16
    assert told.max_model_len == 65_536
    assert told.trouble == ""


async def test_a_rank_that_is_left_stopped_is_told_of_and_not_counted() -> None:
    once = RankLimits(restarts=RestartLimits(max_losses=1))
    ranks = [rank_process(rank, limits=once, ranks=2) for rank in range(2)]
    front = Front(RankGroup(ranks))
    await front.backend.setup()
    try:
        assert ranks[1].pid is not None
        os.kill(ranks[1].pid, signal.SIGKILL)
        async with asyncio.timeout(PATIENCE_S):
            while ranks[1].ranks[0].state != "degraded":
                await asyncio.sleep(0.005)
        told = front.backend.describe()
        assert (told.num_ranks, told.cache_tokens) == (1, 15_258 * 16)
        assert told.trouble == "rank 1 is degraded"
        assert front.backend.unready_reason() is None
        assert isinstance((await front.ask(request("a")))[-1], Finished)
    finally:
        await front.backend.close()
