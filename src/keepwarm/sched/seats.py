"""A rank's slots, and the turns that sit in them. Knows no blocks.

A turn that ends or is preempted gives its slot back at once; its blocks follow when no step in
flight names them, so until then it is `leaving`.
"""

from __future__ import annotations

from keepwarm.core.errors import InvariantBroken
from keepwarm.core.ids import Slot
from keepwarm.sched.turn import Turn


class Seats:
    """Which slot is whose."""

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._free = [Slot(slot) for slot in reversed(range(num_slots))]
        self._ended: list[Slot] = []
        self.running: list[Turn] = []
        """In order of admission."""
        self.leaving: list[Turn] = []

    @property
    def has_free(self) -> bool:
        return bool(self._free)

    @property
    def has_ended(self) -> bool:
        """The executor must still be told of a slot that is free again."""
        return bool(self._ended)

    def take(self, turn: Turn) -> None:
        """Seat a turn; there is a free slot."""
        turn.slot = self._free.pop()
        self.running.append(turn)

    def leave(self, turn: Turn) -> None:
        """Its slot is free; its blocks are not, until `pop_left` returns it."""
        if turn.slot is None:
            raise InvariantBroken(f"{turn.request_id} leaves without having run")
        self.running.remove(turn)
        self._ended.append(turn.slot)
        self._free.append(turn.slot)
        turn.slot = None
        self.leaving.append(turn)

    def pop_left(self) -> list[Turn]:
        """The leaving turns that nothing in flight names any more; they are forgotten here."""
        left = [turn for turn in self.leaving if not turn.is_in_flight]
        self.leaving = [turn for turn in self.leaving if turn.is_in_flight]
        return left

    def take_ended(self) -> tuple[Slot, ...]:
        """Slots that the executor must forget."""
        ended, self._ended = tuple(self._ended), []
        return ended

    def check(self) -> None:
        """Raise `InvariantBroken` unless each slot is free or one running turn's."""
        slots = [*self._free, *(turn.slot for turn in self.running)]
        if sorted(slot for slot in slots if slot is not None) != list(range(self._num_slots)):
            raise InvariantBroken(f"slots free or running: {slots}")
