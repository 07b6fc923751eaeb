"""Copies between device and host memory: numbered, cut into pieces, and followed to their end.

Knows no names and no leases: whoever begins a copy says what its end means.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from keepwarm.core.errors import InvariantBroken
from keepwarm.core.ids import BlockIds, HostSlots
from keepwarm.core.step import BlockCopies, CopyId, CopyResult

Direction = Literal["promote", "demote"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """`blocks[i]` to or from `slots[i]`."""

    blocks: BlockIds
    slots: HostSlots
    before_works: bool = False


@dataclass(slots=True, kw_only=True)
class CopyTotals:
    """Of one direction, since start."""

    num_blocks: int = 0
    num_bytes: int = 0
    copy_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class _Group:
    """Copies that count as one."""

    direction: Direction
    on_end: Callable[[bool], None]
    num_open: int = 0
    is_sound: bool = True


class Copies:
    """All of one executor's."""

    def __init__(self, *, bytes_per_block: int, chunk_bytes: int) -> None:
        self.chunk_blocks = max(1, chunk_bytes // max(1, bytes_per_block))
        self.totals: dict[Direction, CopyTotals] = {"promote": CopyTotals(), "demote": CopyTotals()}
        self._last_id = 0
        self._planned: list[BlockCopies] = []
        self._open: dict[CopyId, tuple[_Group, int]] = {}

    @property
    def num_in_flight(self) -> int:
        """Those that the next plan will carry included."""
        return len(self._open)

    def begin(self, direction: Direction, parts: Sequence[Part], on_end: Callable[[bool], None]) -> None:
        """The next plan carries them. `on_end` is called once all have ended, with whether all are sound."""
        group = _Group(direction=direction, on_end=on_end)
        for part in parts:
            for start in range(0, len(part.blocks), self.chunk_blocks):
                self._begin_chunk(group, part, slice(start, start + self.chunk_blocks))
        if not group.num_open:
            raise InvariantBroken(f"a {direction} of no blocks")

    def take_planned(self) -> tuple[BlockCopies, ...]:
        """What a plan must carry."""
        planned, self._planned = tuple(self._planned), []
        return planned

    def end(self, result: CopyResult) -> Direction:
        """A copy's result was collected; which way it went."""
        if result.copy_id not in self._open:
            raise InvariantBroken(f"result of copy {result.copy_id}, which is not in flight")
        group, num_blocks = self._open.pop(result.copy_id)
        totals = self.totals[group.direction]
        totals.num_blocks += num_blocks if result.is_sound else 0
        totals.num_bytes += result.num_bytes
        totals.copy_s += result.copy_s
        group.num_open -= 1
        group.is_sound = group.is_sound and result.is_sound
        if not group.num_open:
            group.on_end(group.is_sound)
        return group.direction

    def _begin_chunk(self, group: _Group, part: Part, chunk: slice) -> None:
        self._last_id += 1
        copies = BlockCopies(
            copy_id=CopyId(self._last_id),
            direction=group.direction,
            blocks=part.blocks[chunk].copy(),
            slots=part.slots[chunk].copy(),
            before_works=part.before_works,
        )
        self._planned.append(copies)
        self._open[copies.copy_id] = (group, len(copies.blocks))
        group.num_open += 1
