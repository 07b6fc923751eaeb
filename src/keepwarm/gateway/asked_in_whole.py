"""An answer to a request whose beginning was left out, and again with it where the replica asks for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from keepwarm.chat.events import ChatEvent, Failed
from keepwarm.chat.request import ChatRequest
from keepwarm.core.errors import UnknownConversation
from keepwarm.gateway.ports import Answer, AnswerClosed, Replica


class AskedInWhole:
    """An `Answer`. Only its first event can ask for the whole."""

    def __init__(self, replica: Replica, request: ChatRequest, in_whole: Callable[[], ChatRequest]) -> None:
        self._replica = replica
        self._in_whole = in_whole
        self._may_ask = request.known is not None
        self._answer: Answer = replica.chat(request)
        self._closed = False

    async def next(self, wait_s: float) -> Sequence[ChatEvent]:
        if not self._may_ask:
            return await self._answer.next(wait_s)
        try:
            events = await self._answer.next(wait_s)
        except UnknownConversation:
            return await self._ask_again(wait_s)
        self._may_ask = not events
        if events and isinstance(events[0], Failed) and events[0].error.code == UnknownConversation.code:
            return await self._ask_again(wait_s)
        return events

    def close(self) -> None:
        self._closed = True
        self._answer.close()

    async def _ask_again(self, wait_s: float) -> Sequence[ChatEvent]:
        self._may_ask = False
        self._answer.close()
        if self._closed:
            raise AnswerClosed
        self._answer = self._replica.chat(self._in_whole())
        return await self._answer.next(wait_s)
