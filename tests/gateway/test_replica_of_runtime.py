"""The gateway's replica against the contract's own runtime: the two ends of one wire."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from keepwarm.chat.events import ChatEvent, Failed, Finished
from keepwarm.chat.messages import Chat
from keepwarm.chat.request import ChatRequest, ReplicaDescription
from keepwarm.contract.backend import Backend
from keepwarm.contract.runtime import BackendApp
from keepwarm.core.errors import BadRequest, NotReady, Overloaded, to_wire
from keepwarm.core.ids import TenantId
from keepwarm.gateway.http_replica import HttpReplica
from tests.dialects.answers import opening, said
from tests.gateway.doors import LIMIT_S
from tests.gateway.scripted_replica import ScriptedAnswer, ScriptedReplica
from tests.gateway.sockets import listening
from tests.gateway.test_http_replica import CHAT, REQUEST, rest_of


class ScriptedBackend(Backend):
    """A backend that says what a scripted replica says."""

    def __init__(self, behind: ScriptedReplica) -> None:
        self.behind = behind
        self.count_error: BadRequest | None = None

    async def setup(self) -> None:
        pass

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        answer = self.behind.chat(request)
        try:
            while True:
                for event in await answer.next(LIMIT_S):
                    yield event
                    if isinstance(event, Finished | Failed):
                        return
        finally:
            answer.close()

    async def count_tokens(self, tenant: TenantId, chat: Chat) -> int:
        if self.count_error is not None:
            raise self.count_error
        return await self.behind.count_tokens(tenant, chat)

    def describe(self) -> ReplicaDescription:
        return ReplicaDescription(model="smol", max_model_len=8192, cache_tokens=100_000)

    def metrics_text(self) -> str:
        return self.behind.metrics

    async def close(self) -> None:
        pass


class Ends:
    """Both ends of the wire."""

    def __init__(self, path: Path) -> None:
        self.behind = ScriptedReplica()
        self.backend = ScriptedBackend(self.behind)
        self.app = BackendApp(self.backend)
        self.app.refusal = None
        self.replica = HttpReplica(str(path))


@pytest.fixture
async def ends(tmp_path: Path) -> AsyncIterator[Ends]:
    both = Ends(tmp_path / "s")
    async with listening(both.app, tmp_path / "s"):
        yield both


async def test_a_turn_crosses_the_wire_whole(ends: Ends) -> None:
    ends.behind.script = lambda _: said("Hel", "lo", "é")
    answer = ends.replica.chat(REQUEST)
    assert await rest_of(answer) == said("Hel", "lo", "é")
    answer.close()
    assert (await ends.behind.next_answer()).request == REQUEST


async def test_closing_here_closes_the_backends_iterator(ends: Ends) -> None:
    answer = ends.replica.chat(REQUEST)
    assert await answer.next(0) == ()
    teller: ScriptedAnswer = await ends.behind.next_answer()
    teller.say(*opening())
    assert list(await answer.next(LIMIT_S))
    answer.close()
    async with asyncio.timeout(LIMIT_S):
        await teller.closed.wait()


async def test_a_refused_turn_is_the_backends_own_error(ends: Ends) -> None:
    full = Failed(error=to_wire(Overloaded(message="the queue is full", retry_after_s=9)))
    ends.behind.script = lambda _: [full]
    with contextlib.closing(ends.replica.chat(REQUEST)) as answer:
        assert await rest_of(answer) == [full]


async def test_counts_readiness_and_metrics_cross_the_wire(ends: Ends) -> None:
    assert await ends.replica.count_tokens(TenantId("default"), CHAT) == 42
    assert (await ends.replica.describe()).cache_tokens == 100_000
    assert await ends.replica.metrics_text() == "scripted_metric 1.0\n"


async def test_errors_outside_the_stream_cross_the_wire(ends: Ends) -> None:
    ends.backend.count_error = BadRequest("messages.0: this model takes no images")
    with pytest.raises(BadRequest, match="takes no images"):
        await ends.replica.count_tokens(TenantId("default"), CHAT)
    ends.app.refusal = "the model is loading"
    with pytest.raises(NotReady, match="the model is loading"):
        await ends.replica.describe()
    with (
        contextlib.closing(ends.replica.chat(REQUEST)) as answer,
        pytest.raises(NotReady, match="the model is loading"),
    ):
        await answer.next(LIMIT_S)
