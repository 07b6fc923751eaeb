"""The gateway's replica against the contract's own runtime: the two ends of one wire."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from keepwarm.chat.events import Failed
from keepwarm.core.errors import BadRequest, NotReady, Overloaded, from_wire, to_wire
from keepwarm.core.ids import TenantId
from tests.dialects.answers import opening, said
from tests.gateway.doors import LIMIT_S
from tests.gateway.scripted_backend import Wire, wire
from tests.gateway.scripted_replica import ScriptedAnswer
from tests.gateway.test_http_replica import CHAT, REQUEST, rest_of


@pytest.fixture
async def ends(tmp_path: Path) -> AsyncIterator[Wire]:
    async with wire(tmp_path / "s") as both:
        yield both


async def test_a_turn_crosses_the_wire_whole(ends: Wire) -> None:
    ends.behind.script = lambda _: said("Hel", "lo", "é")
    answer = ends.replica.chat(REQUEST)
    assert await rest_of(answer) == said("Hel", "lo", "é")
    answer.close()
    assert (await ends.behind.next_answer()).request == REQUEST


async def test_closing_here_closes_the_backends_iterator(ends: Wire) -> None:
    answer = ends.replica.chat(REQUEST)
    assert await answer.next(0) == ()
    teller: ScriptedAnswer = await ends.behind.next_answer()
    teller.say(*opening())
    assert list(await answer.next(LIMIT_S))
    answer.close()
    async with asyncio.timeout(LIMIT_S):
        await teller.closed.wait()


async def test_a_refused_turn_is_the_backends_own_error(ends: Wire) -> None:
    full = Failed(error=to_wire(Overloaded(message="the queue is full", retry_after_s=9)))
    ends.behind.script = lambda _: [full]
    with contextlib.closing(ends.replica.chat(REQUEST)) as answer:
        assert await rest_of(answer) == [full]


async def test_counts_readiness_and_metrics_cross_the_wire(ends: Wire) -> None:
    assert await ends.replica.count_tokens(TenantId("default"), CHAT) == 42
    assert (await ends.replica.describe()).cache_tokens == 100_000
    assert await ends.replica.metrics_text() == "scripted_metric 1.0\n"


async def test_errors_outside_the_stream_cross_the_wire(ends: Wire) -> None:
    ends.backend.count_error = BadRequest("messages.0: this model takes no images")
    with pytest.raises(BadRequest, match="takes no images"):
        await ends.replica.count_tokens(TenantId("default"), CHAT)
    ends.app.refusal = "the model is loading"
    with pytest.raises(NotReady, match="the model is loading"):
        await ends.replica.describe()
    with contextlib.closing(ends.replica.chat(REQUEST)) as answer:
        (failed,) = await rest_of(answer)
    assert isinstance(failed, Failed)
    assert str(from_wire(failed.error)) == "the model is loading"
