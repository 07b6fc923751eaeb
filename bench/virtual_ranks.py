"""Ranks in virtual time: the shipped scheduler over an executor that computes nothing.

A step takes what `StepTimes` says; nothing here waits, so hours pass in seconds and every run is the same.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from keepwarm.cache.host_index import HostIndex, Owner
from keepwarm.core.hashing import BlockHasher
from keepwarm.core.host_tier import ArenaLayout, HostArena
from keepwarm.core.ids import RequestId, token_ids
from keepwarm.core.layout import CacheLayout, LayerGroup
from keepwarm.core.rank_messages import Admitted, CacheEvent, Ended, Submit, Tokens
from keepwarm.core.session import SessionKey
from keepwarm.core.step import ExecutorLimits, StepPlan
from keepwarm.engine.scripted import ScriptedExecutor
from keepwarm.sched.scheduler import Scheduler, SchedulerSettings

BLOCK_SIZE = 16
KEY = bytes(32)
VOCAB_SIZE = 32_000
STEP_TOKENS = 2_048
_EMPTY_STEP_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """What a step costs a device."""

    step_s: float = 0.015
    token_s: float = 1 / 10_000
    """A computed token."""

    def seconds(self, plan: StepPlan) -> float:
        return self.step_s + plan.num_tokens * self.token_s if plan.works else _EMPTY_STEP_S


class Clock:
    """What happens next, in order of time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._next: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def after(self, delay_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._next, (self.now_s + delay_s, next(self._order), what))

    def run(self) -> None:
        """Until nothing is left to happen."""
        while self._next:
            self.now_s, _, what = heapq.heappop(self._next)
            what()


class Choice(Protocol):
    """Which rank takes a turn."""

    def choose(self, turn: Submit, session: SessionKey) -> int: ...
    def hear(self, event: Admitted | Tokens | Ended) -> None: ...
    def cache_changed(self, rank: int, events: Sequence[CacheEvent]) -> None: ...
    def host_changed(self, events: Sequence[CacheEvent]) -> None: ...


LAYOUT = CacheLayout(
    block_size=BLOCK_SIZE,
    groups=(LayerGroup(kind="full", num_layers=1, window_tokens=None, bytes_per_token=8),),
)


class SharedHost:
    """Host memory of all ranks. Copies take no time."""

    def __init__(self, num_slots: int) -> None:
        layout = ArenaLayout(num_slots=num_slots, slot_bytes=LAYOUT.bytes_per_block)
        self.index = HostIndex(num_slots)
        self.arena = HostArena(memory=memoryview(bytearray(layout.total_bytes)), layout=layout)


Listener = Callable[[Admitted | Tokens | Ended], None]


@dataclass(slots=True)
class VirtualRank:
    """One rank; a step is under way or it waits for a turn."""

    number: int
    clock: Clock
    times: StepTimes
    num_blocks: int
    max_num_seqs: int
    max_model_len: int
    hear: Callable[[int, Sequence[Admitted | Tokens | Ended], Sequence[CacheEvent]], None]
    host: SharedHost | None = None
    scheduler: Scheduler = field(init=False)
    _executor: ScriptedExecutor = field(init=False)
    _is_busy: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        limits = ExecutorLimits(
            layout=LAYOUT,
            num_blocks=self.num_blocks,
            max_num_seqs=self.max_num_seqs,
            max_model_len=self.max_model_len,
            vocab_size=VOCAB_SIZE,
        )
        self.scheduler = Scheduler(
            limits=limits,
            hasher=BlockHasher(key=KEY, block_size=BLOCK_SIZE),
            settings=SchedulerSettings(max_num_batched_tokens=STEP_TOKENS),
            host=None if self.host is None else self.host.index.for_owner(Owner(self.number)),
        )
        self._executor = ScriptedExecutor(limits=limits, verify=False)
        if self.host is not None:
            self._executor.attach_arena(self.host.arena)

    def submit(self, turn: Submit) -> None:
        self.scheduler.submit(turn)
        if not self._is_busy:
            self._is_busy = True
            self._step()

    def _step(self) -> None:
        plan = self.scheduler.plan(self.clock.now_s)
        self._executor.submit(plan)
        self._tell()
        self.clock.after(self.times.seconds(plan), self._end_step)

    def _end_step(self) -> None:
        self.scheduler.commit(self._executor.collect())
        self._tell()
        if self.scheduler.has_work:
            self._step()
        else:
            self._is_busy = False
            self.scheduler.check_integrity()

    def _tell(self) -> None:
        self.hear(self.number, self.scheduler.take_events(), self.scheduler.take_cache_events())


class VirtualReplica:
    """Several ranks, a choice among them, and who listens to which turn."""

    def __init__(
        self,
        clock: Clock,
        choice: Choice,
        *,
        num_ranks: int,
        host: SharedHost | None = None,
        **of_each: int | StepTimes,
    ) -> None:
        self._choice = choice
        self._host = host
        self._listeners: dict[RequestId, Listener] = {}
        self.ranks = [
            VirtualRank(number=number, clock=clock, hear=self._hear, host=host, **of_each)  # type: ignore[arg-type]
            for number in range(num_ranks)
        ]

    def submit(self, turn: Submit, session: SessionKey, listener: Listener) -> int:
        """Returns the rank that was chosen."""
        self._listeners[turn.request_id] = listener
        number = self._choice.choose(turn, session)
        self.ranks[number].submit(turn)
        return number

    def _hear(
        self, rank: int, events: Sequence[Admitted | Tokens | Ended], cache: Sequence[CacheEvent]
    ) -> None:
        self._choice.cache_changed(rank, cache)
        if self._host is not None:
            self._choice.host_changed(self._host.index.take_events())
        for event in events:
            self._choice.hear(event)
            listener = self._listeners[event.request_id]
            if isinstance(event, Ended):
                del self._listeners[event.request_id]
            listener(event)


EMPTY_TOKENS = token_ids([])
