"""The seam between a front and whatever schedules and computes turns: one rank, or several as one.

A foreign engine with a scheduler of its own stands behind the same port. Knows no process,
no socket and no step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from keepwarm.core.errors import Degraded, InvariantBroken, KeepwarmError, NotReady, to_wire
from keepwarm.core.ids import RequestId
from keepwarm.core.rank_messages import Admitted, CacheEvent, Ended, RankStats, Ready, Submit, Tokens
from keepwarm.core.session import NO_SESSION, SessionKey

RankEvent = Admitted | Tokens | Ended
Listener = Callable[[RankEvent], None]
"""Takes one turn's events in order, on the event loop; never blocks, never raises."""


RankState = Literal["loading", "serving", "lost", "degraded"]
"""lost: it is being started again. degraded: it was lost too often and is left stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankView:
    """One rank, now."""

    rank: int
    """From 0."""
    state: RankState
    stats: RankStats | None
    """The latest it has said; None before it said anything. Those of a lost rank are its last ones."""
    num_restarts: int
    """How often it was started again after it was lost."""
    ready: Ready | None = None
    """What it can hold; None before it was loaded the first time."""


class RankWatcher(Protocol):
    """Hears what becomes of ranks and their blocks, on the event loop; never blocks, never raises."""

    def rank_serves(self, rank: int, ready: Ready) -> None:
        """It takes turns from now on, and its device memory holds nothing yet."""

    def cache_changed(self, rank: int, events: Sequence[CacheEvent]) -> None:
        """What one step did to named blocks, in order."""

    def rank_lost(self, rank: int) -> None:
        """Its device memory is gone, with every block in it; it takes no turns. Told before those it
        had are ended."""


class RankPort(Protocol):
    """One rank or several, as a front sees them. All calls come from one event loop.

    Each submitted turn ends in exactly one `Ended`, whatever happens to a rank, and hears
    nothing after it.
    """

    async def start(self) -> None:
        """Load. Called once; turns come only after it returned. Raises `SetupError`."""

    @property
    def ready(self) -> Ready | None:
        """What any one rank can hold; None before `start` returned. A restart may change it."""

    def submit(self, turn: Submit, listener: Listener, *, session: SessionKey = NO_SESSION) -> None:
        """Hand over a turn; `session` helps to choose its rank. Raises `NotReady` when nobody is there
        to take it."""

    def abort(self, request_id: RequestId) -> None:
        """Its client went away: the work stops within one step. An ended or unknown id is ignored."""

    def cut(self, request_id: RequestId, num_output_tokens: int) -> None:
        """End it as if it had stopped after so many tokens. An ended or unknown id is ignored."""

    def unready_reason(self) -> str | None:
        """Why a turn would not be taken now; None: it would."""

    @property
    def ranks(self) -> Sequence[RankView]:
        """Each of them, in the order of their numbers."""

    def watch(self, watcher: RankWatcher) -> None:
        """`watcher` hears everything from now on; it is called before whoever listens to a turn."""

    async def close(self) -> None:
        """End open turns as failed, then release the ranks. Waits a bounded time."""


def refusal(port: RankPort) -> NotReady | None:
    """Why a turn would not be taken now, as the error it ends with: `Degraded` where every rank is left
    stopped, so that waiting helps nobody."""
    reason = port.unready_reason()
    if reason is None:
        return None
    views = port.ranks
    is_left_stopped = bool(views) and all(view.state == "degraded" for view in views)
    return Degraded(reason) if is_left_stopped else NotReady(reason)


class Watchers:
    """Everybody who watches one rank."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._watchers: list[RankWatcher] = []

    def add(self, watcher: RankWatcher) -> None:
        self._watchers.append(watcher)

    def serves(self, ready: Ready) -> None:
        for watcher in self._watchers:
            watcher.rank_serves(self._rank, ready)

    def cache_changed(self, events: Sequence[CacheEvent]) -> None:
        if events:
            for watcher in self._watchers:
                watcher.cache_changed(self._rank, events)

    def lost(self) -> None:
        for watcher in self._watchers:
            watcher.rank_lost(self._rank)


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
