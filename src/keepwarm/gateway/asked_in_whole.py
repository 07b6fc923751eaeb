"""An answer to a request whose beginning was left out, and again with it where the replica asks for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from keepwarm.chat.events import Accepted, ChatEvent, Failed
from keepwarm.chat.request import ChatRequest
from keepwarm.core.errors import UnknownConversation
from keepwarm.gateway.ports import Answer, AnswerClosed, Replica


class AskedInWhole:
    """An `Answer`. Its first event decides: the whole is asked for, or the turn is taken; then what
    could make the request anew is let go."""

    def __init__(
        self,
        replica: Replica,
        request: ChatRequest,
        *,
        in_whole: Callable[[], ChatRequest],
        taken: Callable[[Accepted], None],
    ) -> None:
        self._in_whole: Callable[[], Answer] | None = lambda: replica.chat(in_whole())
        self._taken: Callable[[Accepted], None] | None = taken
        self._answer: Answer = replica.chat(request)
        self._closed = False

    async def next(self, wait_s: float) -> Sequence[ChatEvent]:
        if self._taken is None:
            return await self._answer.next(wait_s)
        try:
            events = await self._answer.next(wait_s)
        except UnknownConversation:
            return await self._ask_again(wait_s)
        if events and isinstance(events[0], Failed) and events[0].error.code == UnknownConversation.code:
            return await self._ask_again(wait_s)
        if events:
            self._decide(events[0])
        return events

    def close(self) -> None:
        self._closed = True
        self._in_whole = self._taken = None
        self._answer.close()

    def _decide(self, first: ChatEvent) -> None:
        if self._taken is not None and isinstance(first, Accepted):
            self._taken(first)
        self._in_whole = self._taken = None

    async def _ask_again(self, wait_s: float) -> Sequence[ChatEvent]:
        self._answer.close()
        if self._in_whole is None or self._closed:
            raise AnswerClosed
        self._answer, self._in_whole = self._in_whole(), None
        events = await self._answer.next(wait_s)
        if events:
            self._decide(events[0])
        return events
