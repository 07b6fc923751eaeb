"""Who is admitted: the queue of waiting turns, and what a turn must hold before it starts.

A turn starts when a slot is free and its whole prompt and a reserve of output have room; it waits
while a running turn is about to publish what it would read next, or a slower tier brings it up.
What host memory has of it is copied into its blocks first (`promotions`).
"""

from __future__ import annotations

from collections import deque

from keepwarm.cache.prefix import PrefixCache
from keepwarm.core.errors import InvariantBroken
from keepwarm.core.layout import CacheLayout
from keepwarm.sched.reading import Reading
from keepwarm.sched.seats import Seats
from keepwarm.sched.settings import SchedulerSettings
from keepwarm.sched.tiers import Tiers
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
        tiers: Tiers,
        settings: SchedulerSettings,
    ) -> None:
        self._cache = cache
        self._layout = layout
        self._seats = seats
        self._reading = reading
        self._tiers = tiers
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

    def start_next(self, now_s: float) -> Turn | None:
        """The next turn that can start, with its blocks and its slot. None: nobody can, now."""
        while self._waiting and self._seats.has_free:
            turn = self._waiting[0]
            num_hits = self._cache.match(turn.names, max_tokens=turn.num_cacheable)
            if self._is_being_read(turn, num_hits) or self._tiers.promotions.must_wait(turn, num_hits, now_s):
                self._held_back.append(self._waiting.popleft())
                continue
            if not self._start(turn, num_hits):
                return None
            return self._waiting.popleft()
        return None

    def end_round(self) -> None:
        """Who was passed over keeps its place."""
        self._waiting.extendleft(reversed(self._held_back))
        self._held_back.clear()

    def _is_being_read(self, turn: Turn, num_hits: int) -> bool:
        """Whether a running turn is about to publish what this one would read next."""
        return num_hits < len(turn.names) and turn.names[num_hits] in self._reading

    def _start(self, turn: Turn, num_hits: int) -> bool:
        """Hold blocks for the whole prompt and an output reserve; False when there is no room."""
        num_tokens = turn.num_known + turn.output_reserve(self._settings.output_reserve_tokens)
        if not self._make_room(turn, num_tokens, num_hits):
            return False
        # leased before room is made here, lest what is evicted takes the very place of what is found
        lease = self._tiers.promotions.find(turn, num_hits)
        holding = self._cache.acquire(
            turn.names,
            num_tokens=num_tokens,
            max_cached_tokens=turn.num_cacheable,
            prompt_tokens=turn.num_prompt,
        )
        if holding is None:
            raise InvariantBroken(f"{turn.request_id}: there was room for {num_tokens} tokens")
        turn.holding = holding
        turn.num_computed = turn.num_planned = holding.num_cached_blocks * self._layout.block_size
        self._seats.take(turn)
        self._reading.begin(turn.names[holding.num_named :])
        if lease is not None:
            self._tiers.promotions.begin(turn, lease)
        return True

    def _make_room(self, turn: Turn, num_tokens: int, num_hits: int) -> bool:
        for _ in range(2):
            if self._cache.has_room(turn.names, num_tokens=num_tokens, num_hits=num_hits):
                return True
            if not self._tiers.demotions.give_way():
                return False
        return False
