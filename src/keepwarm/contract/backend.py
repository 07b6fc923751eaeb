"""The classes a backend derives from. Knows no transport; `runtime` serves it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Protocol

from keepwarm.chat.events import ChatEvent, Terminal
from keepwarm.chat.messages import Chat
from keepwarm.chat.request import ChatRequest, ReplicaDescription
from keepwarm.contract.event_feed import EventFeed
from keepwarm.core.errors import BadRequest, NotFound, NotReady
from keepwarm.core.ids import TenantId


class Backend(ABC):
    """One replica. Built cheaply; loads in `setup`; lives in one event loop."""

    @abstractmethod
    async def setup(self) -> None:
        """Load. Requests come only after it returned. Raises `SetupError`."""

    @abstractmethod
    def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        """Answer one turn, in the order `keepwarm.chat.events` lays down.

        Closing the iterator (`aclose`) is the client going away: the work stops within one step.
        Errors of our tree may be raised before the first event; the runtime makes them `Failed`.
        """

    async def count_tokens(self, tenant: TenantId, chat: Chat) -> int:
        """Tokens of the prompt this chat would become, generation prompt included."""
        raise BadRequest("this backend cannot count tokens")

    @abstractmethod
    def describe(self) -> ReplicaDescription:
        """What is served. Valid once `setup` returned."""

    def unready_reason(self) -> str | None:
        """Why a request would not be served now, for the person who can act on it; None: it would."""
        return None

    def refusal(self) -> NotReady | None:
        """The same as the error that requests end with; `Degraded` where waiting helps nobody."""
        reason = self.unready_reason()
        return None if reason is None else NotReady(reason)

    def metrics_text(self) -> str:
        """Prometheus text of this replica's own metrics."""
        return ""

    def watch_events(self) -> EventFeed:
        """A new watcher of what becomes of this replica's caches, as lines. Raises `Overloaded` where
        there are watchers enough, `NotFound` where nothing is told."""
        raise NotFound("this backend tells no events")

    @abstractmethod
    async def close(self) -> None:
        """End what is running and release everything."""


Tell = Callable[[Sequence[ChatEvent]], None]
"""Takes a turn's next events, on the event loop; never raises, never blocks."""


class OpenTurn(Protocol):
    """A turn that is being answered."""

    def close(self) -> None:
        """Its client is gone: the work stops within one step, and nothing more is told. Also called
        after the end, and more than once."""


class TellingBackend(Backend):
    """A backend that tells instead of being asked: with hundreds of turns that all say something at
    each step, a task to wake for each of them would cost more than what it does."""

    @abstractmethod
    def open_turn(self, request: ChatRequest, tell: Tell) -> OpenTurn:
        """Begin a turn and return; its events are told later, the terminal one last, exactly once.
        Raises errors of our tree, and then tells nothing."""

    async def chat(self, request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        told = _Told()
        turn = self.open_turn(request, told.tell)
        try:
            while True:
                for event in await told.take():
                    yield event
                    if isinstance(event, Terminal):
                        return
        finally:
            turn.close()


class _Told:
    """What a turn has told and its reader has not taken."""

    def __init__(self) -> None:
        self._events: list[ChatEvent] = []
        self._filled = asyncio.Event()

    def tell(self, events: Sequence[ChatEvent]) -> None:
        self._events += events
        self._filled.set()

    async def take(self) -> list[ChatEvent]:
        """All that was told since; waits for the first. A turn owes an end, so this ends."""
        await self._filled.wait()
        self._filled.clear()
        events, self._events = self._events, []
        return events
