"""The seam between a front and whatever schedules and computes turns.

A foreign engine with a scheduler of its own stands behind the same port. Knows no process,
no socket and no step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from keepwarm.core.errors import InvariantBroken, KeepwarmError, to_wire
from keepwarm.core.ids import RequestId
from keepwarm.core.rank_messages import Admitted, Ended, RankStats, Ready, Submit, Tokens

RankEvent = Admitted | Tokens | Ended
Listener = Callable[[RankEvent], None]
"""Takes one turn's events in order, on the event loop; never blocks, never raises."""


class RankPort(Protocol):
    """One rank, as a front sees it. All calls come from one event loop.

    Each submitted turn ends in exactly one `Ended`, whatever happens to the rank, and hears
    nothing after it.
    """

    async def start(self) -> None:
        """Load. Called once; turns come only after it returned. Raises `SetupError`."""

    @property
    def ready(self) -> Ready | None:
        """What the rank can hold; None before `start` returned. A restart may change it."""

    def submit(self, turn: Submit, listener: Listener) -> None:
        """Hand over a turn. Raises `NotReady` when nobody is there to take it."""

    def abort(self, request_id: RequestId) -> None:
        """Its client went away: the work stops within one step. An ended or unknown id is ignored."""

    def cut(self, request_id: RequestId, num_output_tokens: int) -> None:
        """End it as if it had stopped after so many tokens. An ended or unknown id is ignored."""

    def unready_reason(self) -> str | None:
        """Why a turn would not be taken now; None: it would."""

    @property
    def stats(self) -> RankStats | None:
        """The latest the rank has said; None before it said anything."""

    @property
    def num_restarts(self) -> int:
        """How often the rank was started again after it was lost."""

    async def close(self) -> None:
        """End open turns as failed, then release the rank. Waits a bounded time."""


class OpenTurns:
    """The turns a rank owes an end, and who listens to each."""

    def __init__(self) -> None:
        self._listeners: dict[RequestId, Listener] = {}

    def __len__(self) -> int:
        return len(self._listeners)

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._listeners

    def open(self, request_id: RequestId, listener: Listener) -> None:
        """From here on the turn is owed an end. Raises `InvariantBroken` when it is open already."""
        if request_id in self._listeners:
            raise InvariantBroken(f"request {request_id} was submitted twice")
        self._listeners[request_id] = listener

    def deliver(self, events: Iterable[RankEvent]) -> None:
        """Pass events on; those of turns that have ended here are dropped."""
        for event in events:
            listener = self._listeners.get(event.request_id)
            if listener is None:
                continue
            if isinstance(event, Ended):
                del self._listeners[event.request_id]
            listener(event)

    def end_all(self, error: KeepwarmError) -> None:
        """End every open turn as failed."""
        wire = to_wire(error)
        self.deliver([Ended(request_id=id_, reason="failed", error=wire) for id_ in self._listeners])
