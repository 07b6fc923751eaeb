"""Room for a running turn that grows: blocks, and where there are none, who gives way.

First what only waits to be copied down, then a running turn, which is preempted. Nobody is where
blocks come free by themselves, with a step or a copy in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from keepwarm.cache.prefix import PrefixCache
from keepwarm.core.errors import InvariantBroken
from keepwarm.core.step import BlockChange, SequenceWork
from keepwarm.sched.seats import Seats
from keepwarm.sched.settings import SchedulerSettings
from keepwarm.sched.tiers import Tiers
from keepwarm.sched.turn import Turn

Planned = tuple[Turn, SequenceWork]


class Room:
    """Decides; `preempt` does it."""

    def __init__(
        self,
        *,
        cache: PrefixCache,
        seats: Seats,
        tiers: Tiers,
        settings: SchedulerSettings,
        preempt: Callable[[Turn], None],
    ) -> None:
        self._cache = cache
        self._seats = seats
        self._tiers = tiers
        self._settings = settings
        self._preempt = preempt

    def make(self, turn: Turn, end: int, works: Sequence[Planned]) -> list[BlockChange] | None:
        """Blocks for tokens [0, end) and, if there is room, the output reserve; the changes to its table.

        None: not now, perhaps because `turn` itself was preempted. Those of `works` never are.
        """
        holding, layout = turn.holding, self._cache.layout
        if holding is None:
            raise InvariantBroken(f"{turn.request_id} runs without blocks")
        num_held = len(holding.blocks)
        missing = layout.blocks_for(end) - num_held
        if missing <= 0:
            return []
        reserve = turn.output_reserve(self._settings.output_reserve_tokens)
        wanted = layout.blocks_for(turn.num_known + reserve) - num_held
        while True:
            for num_blocks in (wanted, missing):
                if self._cache.extend(holding, num_blocks) is not None:
                    return _changes(turn, num_held)
            if not self._tiers.demotions.give_way() and not self._preempt_somebody(turn, works):
                return None

    def _preempt_somebody(self, turn: Turn, works: Sequence[Planned]) -> bool:
        """Whether to try again."""
        victim = self._choose_victim(works)
        if victim is not None:
            self._preempt(victim)
        return victim is not None and victim is not turn

    def _choose_victim(self, works: Sequence[Planned]) -> Turn | None:
        """The cheapest to restore, but never the oldest, so that somebody always finishes."""
        if self._seats.leaving or self._tiers.demotions.holds_blocks:
            return None
        planned = {turn for turn, _work in works}
        candidates = [turn for turn in self._seats.running[1:] if turn not in planned]
        return min(candidates, key=_cost_to_restore, default=None)


def _cost_to_restore(turn: Turn) -> tuple[bool, int]:
    """A turn that waits for a copy would free nothing before that has ended."""
    return turn.promotion is not None, turn.num_computed


def _changes(turn: Turn, first: int) -> list[BlockChange]:
    """The blocks of its holding from `first` on are new."""
    if turn.slot is None or turn.holding is None:
        raise InvariantBroken(f"{turn.request_id} grows without a slot")
    return [
        BlockChange(slot=turn.slot, index=index, block=block)
        for index, block in enumerate(turn.holding.blocks[first:].tolist(), start=first)
    ]
