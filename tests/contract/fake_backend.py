"""A backend that says what a test tells it to, and notes what became of its answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from keepwarm.chat.events import Accepted, ChatEvent, Failed, Finished, TextDelta, Timings, Usage
from keepwarm.chat.messages import Chat, Message, Text
from keepwarm.chat.request import ChatRequest, ReplicaDescription
from keepwarm.contract.backend import Backend
from keepwarm.core.errors import NotReady, to_wire
from keepwarm.core.ids import RequestId, TenantId

PATIENCE_S = 20.0

FINISHED = Finished(
    reason="end",
    usage=Usage(prompt_tokens=1, cached_tokens=0, output_tokens=1),
    timings=Timings(admitted_s=0.0, first_token_s=0.0, total_s=0.0),
)
HELLO = (Accepted(prompt_tokens=1), TextDelta(text="hel"), TextDelta(text="lo"), FINISHED)

Said = ChatEvent | Exception | asyncio.Event
"""An event is said, an exception raised, an `asyncio.Event` waited for."""


class FakeBackend(Backend):
    """Each answer is `said`; closing the backend ends open ones as failed."""

    def __init__(self, *said: Said, setup_error: Exception | None = None) -> None:
        self.said = said
        self.setup_error = setup_error
        self.may_load = asyncio.Event()
        self.may_load.set()
        self.closed = asyncio.Event()
        self.left = asyncio.Event()
        """Set when an answer's iterator has ended, for whatever reason."""
        self.num_said = 0
        self.reason: str | None = None

    async def setup(self) -> None:
        await self.may_load.wait()
        if self.setup_error is not None:
            raise self.setup_error

    async def chat(self, request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        try:
            for what in self.said:
                if isinstance(what, asyncio.Event):
                    if await self._closed_before(what):
                        yield Failed(error=to_wire(NotReady("closed")))
                        return
                elif isinstance(what, Exception):
                    raise what
                else:
                    self.num_said += 1
                    yield what
        finally:
            self.left.set()

    async def count_tokens(self, tenant: TenantId, chat: Chat) -> int:
        return len(chat.messages)

    def describe(self) -> ReplicaDescription:
        return ReplicaDescription(model="fake", max_model_len=10, cache_tokens=100)

    def unready_reason(self) -> str | None:
        return self.reason

    def metrics_text(self) -> str:
        return "fake_total 1\n"

    async def close(self) -> None:
        self.closed.set()

    async def _closed_before(self, event: asyncio.Event) -> bool:
        waits = [asyncio.create_task(either.wait()) for either in (event, self.closed)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return not event.is_set()


def chat_request(name: str = "r1") -> ChatRequest:
    chat = Chat(messages=(Message(role="user", parts=(Text(text="hello"),)),))
    return ChatRequest(request_id=RequestId(name), tenant=TenantId("t"), chat=chat)
