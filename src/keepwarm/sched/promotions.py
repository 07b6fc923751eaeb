"""What a turn gets from host memory: leased when it is admitted, copied up, given back.

    find ──lease──▶ begin ──copies in flight──▶ end: the lease is released, `on_end` says whether
      │                                          the blocks may be read
      └─ reading again is cheaper: released at once

A turn whose prefix a slower tier is bringing up waits for it, and holds up nobody else.
"""

from __future__ import annotations

from collections.abc import Callable

from keepwarm.core.errors import InvariantBroken
from keepwarm.core.host_tier import HostLease
from keepwarm.core.ids import BlockHash
from keepwarm.core.layout import CacheLayout
from keepwarm.sched.copies import Copies, Part
from keepwarm.sched.copy_costs import CopyCosts
from keepwarm.sched.host_link import HostLink
from keepwarm.sched.turn import Promotion, Turn

PREFETCH_POLL_S = 0.05
"""Between two questions whether a slower tier is done."""
PREFETCH_PATIENCE_S = 60.0
"""A turn waits no longer for a slower tier: it is read instead."""


class Promotions:
    """All of one rank's."""

    def __init__(
        self,
        *,
        link: HostLink,
        copies: Copies,
        costs: CopyCosts,
        layout: CacheLayout,
        on_end: Callable[[Turn, Promotion, bool], None],
    ) -> None:
        self._link = link
        self._copies = copies
        self._costs = costs
        self._layout = layout
        self._on_end = on_end
        self.num_in_flight = 0
        """Turns that wait for theirs."""
        self.num_skipped = 0
        """Turns for which reading again was predicted to be cheaper."""

    def must_wait(self, turn: Turn, num_hits: int, now_s: float) -> bool:
        """Whether a slower tier is bringing up what this turn would read behind its first `num_hits`
        blocks, which the device has."""
        if turn.has_prefetched or not self._link.is_on:
            return False
        if turn.prefetch_asked_s is not None and now_s < turn.prefetch_asked_s + PREFETCH_POLL_S:
            return True
        after, names = self._wanted(turn, num_hits)
        turn.prefetch_asked_s = now_s
        if turn.prefetch_began_s is None:
            turn.prefetch_began_s = now_s
        is_patient = now_s < turn.prefetch_began_s + PREFETCH_PATIENCE_S
        turn.has_prefetched = not (names and is_patient and self._link.prefetch(after, names))
        return not turn.has_prefetched

    def find(self, turn: Turn, num_hits: int) -> HostLease | None:
        """Slots to copy up from, behind the `num_hits` blocks that the device has. Then `begin`."""
        if not self._link.is_on:
            return None
        after, names = self._wanted(turn, num_hits)
        lease = self._link.find(after, names) if names else None
        if lease is None:
            return None
        num_blocks = len(lease.slots)
        if self._costs.pays(
            num_tokens=num_blocks * self._layout.block_size,
            num_bytes=num_blocks * self._layout.bytes_per_block,
        ):
            return lease
        self.num_skipped += not turn.has_skipped_promotion
        turn.has_skipped_promotion = True
        self._link.release(lease)
        return None

    def begin(self, turn: Turn, lease: HostLease) -> None:
        """Copy up into the first blocks of the turn's holding that are not computed."""
        holding = turn.holding
        if holding is None:
            raise InvariantBroken(f"{turn.request_id} is promoted without blocks")
        first = holding.num_named
        blocks = holding.blocks[first : first + len(lease.slots)]
        turn.promotion = Promotion(lease=lease, first_block=first)
        self.num_in_flight += 1
        self._copies.begin(
            "promote", [Part(blocks=blocks, slots=lease.slots)], lambda is_sound: self._end(turn, is_sound)
        )

    def _end(self, turn: Turn, is_sound: bool) -> None:
        promotion, turn.promotion = turn.promotion, None
        if promotion is None:
            raise InvariantBroken(f"{turn.request_id} waited for no copy")
        self.num_in_flight -= 1
        if not is_sound:
            names = turn.names[promotion.first_block : promotion.end_block]
            self._link.distrust(
                names, f"a checksum did not match: one of {len(names)} blocks copied up is not what it was"
            )
        was_leased = self._link.release(promotion.lease)
        self._on_end(turn, promotion, is_sound and was_leased)

    def _wanted(self, turn: Turn, num_hits: int) -> tuple[BlockHash | None, list[BlockHash]]:
        """The names behind what the device has, and the one before them."""
        after = turn.names[num_hits - 1] if num_hits else None
        return after, turn.names[num_hits : turn.num_cacheable // self._layout.block_size]
