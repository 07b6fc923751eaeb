"""A replica in this process that says what a test tells it to; passes the same suite as `HttpReplica`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from keepwarm.chat.events import ChatEvent
from keepwarm.chat.messages import Chat
from keepwarm.chat.request import ChatRequest, ReplicaDescription
from keepwarm.core.errors import KeepwarmError, ReplicaLost
from keepwarm.core.ids import TenantId
from keepwarm.gateway.ports import AnswerClosed

Script = Callable[[ChatRequest], Sequence[ChatEvent]]


class ScriptedAnswer:
    """One answer, said piece by piece by the test."""

    def __init__(self, request: ChatRequest) -> None:
        self.request = request
        self.closed = asyncio.Event()
        self.num_taken = 0
        self._events: list[ChatEvent] = []
        self._error: KeepwarmError | None = None
        self._news = asyncio.Event()
        self._waited = asyncio.Event()

    def say(self, *events: ChatEvent) -> None:
        """Give these events to the reader."""
        self._events.extend(events)
        self._news.set()

    async def waited(self) -> None:
        """Return once the reader has waited in vain."""
        self._waited.clear()
        async with asyncio.timeout(10):
            await self._waited.wait()

    def break_off(self) -> None:
        """The replica dies."""
        self._error = ReplicaLost("the backend went away before the answer was complete")
        self._news.set()

    async def next(self, wait_s: float) -> Sequence[ChatEvent]:
        if not self._events and self._error is None and not self.closed.is_set():
            self._news.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await self._news.wait()
            except TimeoutError:
                self._waited.set()
                return ()
        if self.closed.is_set():
            raise AnswerClosed
        events, self._events = self._events, []
        if not events and self._error is not None:
            raise self._error
        self.num_taken += len(events)
        return events

    def close(self) -> None:
        self.closed.set()
        self._news.set()


class ScriptedReplica:
    """Answers by `script` where there is one, else as the test says through `next_answer`."""

    def __init__(self, script: Script | None = None) -> None:
        self.script = script
        self.not_ready: KeepwarmError | None = None
        self.trouble = ""
        self.counted: list[Chat] = []
        self.metrics = "scripted_metric 1.0\n"
        self._answers: asyncio.Queue[ScriptedAnswer] = asyncio.Queue()

    def chat(self, request: ChatRequest) -> ScriptedAnswer:
        answer = ScriptedAnswer(request)
        if self.script is not None:
            answer.say(*self.script(request))
        self._answers.put_nowait(answer)
        return answer

    async def next_answer(self) -> ScriptedAnswer:
        """The answer to the next turn, as soon as somebody asks for one."""
        async with asyncio.timeout(10):
            return await self._answers.get()

    async def count_tokens(self, tenant: TenantId, chat: Chat) -> int:
        self.counted.append(chat)
        return 42

    async def describe(self) -> ReplicaDescription:
        if self.not_ready is not None:
            raise self.not_ready
        return ReplicaDescription(
            model="smol", max_model_len=8192, cache_tokens=100_000, trouble=self.trouble
        )

    async def metrics_text(self) -> str:
        return self.metrics
