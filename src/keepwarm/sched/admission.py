"""Who is admitted: the queue of waiting turns, and what a turn must hold before it starts.

A turn starts when a slot is free and its whole prompt and a reserve of output have room; it waits
while a running turn is about to publish what it would read next.
"""

from __future__ import annotations

from collections import deque

from keepwarm.cache.prefix import PrefixCache
from keepwarm.core.layout import CacheLayout
from keepwarm.sched.reading import Reading
from keepwarm.sched.seats import Seats
from keepwarm.sched.settings import SchedulerSettings
from keepwarm.sched.turn import Turn


class Admission:
    """Owns the queue. The order of calls in a plan: `start_next` until None or the step is full,
    then `end_round`."""

    def __init__(
        self,
        *,
        cache: PrefixCache,
        layout: CacheLayout,
        seats: Seats,
        reading: Reading,
        settings: SchedulerSettings,
    ) -> None:
        self._cache = cache
        self._layout = layout
        self._seats = seats
        self._reading = reading
        self._settings = settings
        self._waiting: deque[Turn] = deque()
        self._held_back: list[Turn] = []

    def __len__(self) -> int:
        return len(self._waiting) + len(self._held_back)

    def queue(self, turn: Turn) -> None:
        self._waiting.append(turn)

    def queue_first(self, turn: Turn) -> None:
        """A preempted turn goes before those that never ran."""
        self._waiting.appendleft(turn)

    def remove(self, turn: Turn) -> None:
        """A turn that ended; ignored where it does not wait."""
        if turn in self._waiting:
            self._waiting.remove(turn)

    def start_next(self) -> Turn | None:
        """The next turn that can start, with its blocks and its slot. None: nobody can, now."""
        while self._waiting and self._seats.has_free:
            turn = self._waiting[0]
            if self._is_being_read(turn):
                self._held_back.append(self._waiting.popleft())
                continue
            if not self._start(turn):
                return None
            return self._waiting.popleft()
        return None

    def end_round(self) -> None:
        """Who was passed over keeps its place."""
        self._waiting.extendleft(reversed(self._held_back))
        self._held_back.clear()

    def _is_being_read(self, turn: Turn) -> bool:
        """Whether a running turn is about to publish what this one would read next."""
        if not len(self._reading):
            return False
        num_hits = self._cache.match(turn.names, max_tokens=turn.num_known - 1)
        return num_hits < len(turn.names) and turn.names[num_hits] in self._reading

    def _start(self, turn: Turn) -> bool:
        """Hold blocks for the whole prompt and an output reserve; False when there is no room."""
        holding = self._cache.acquire(
            turn.names,
            num_tokens=turn.num_known + turn.output_reserve(self._settings.output_reserve_tokens),
            max_cached_tokens=turn.num_known - 1,  # the last one must be computed, to sample from it
            prompt_tokens=turn.num_prompt,
        )
        if holding is None:
            return False
        turn.holding = holding
        turn.num_computed = turn.num_planned = holding.num_cached_blocks * self._layout.block_size
        self._seats.take(turn)
        self._reading.begin(turn.names[holding.num_named :])
        return True
