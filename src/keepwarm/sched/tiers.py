"""One rank's two tiers together: what is copied up for turns that start, and down for those that ended.

The seam between the scheduler, which knows turns and steps, and the modules that know copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from keepwarm.cache.prefix import PrefixCache
from keepwarm.core.errors import InvariantBroken
from keepwarm.core.host_tier import HostTier, HostTierLost
from keepwarm.core.step import BlockCopies, CopyResult
from keepwarm.sched.copies import Copies, CopyTotals
from keepwarm.sched.copy_costs import CopyCosts
from keepwarm.sched.demotions import Demotions
from keepwarm.sched.host_link import HostLink
from keepwarm.sched.promotions import Promotions
from keepwarm.sched.settings import SchedulerSettings
from keepwarm.sched.turn import Promotion, Turn


class Tiers:
    """Without `host` nothing is ever copied."""

    def __init__(
        self,
        *,
        host: HostTier | HostTierLost | None,
        cache: PrefixCache,
        settings: SchedulerSettings,
        on_promoted: Callable[[Turn, Promotion, bool], None],
    ) -> None:
        if cache.windows is not None and not isinstance(host, HostTierLost | None):
            raise InvariantBroken("blocks of layers with a window are not copied, and those come with others")
        self._link = HostLink(host if cache.can_resume else None)  # else nothing could be taken up
        self._copies = Copies(
            bytes_per_block=cache.layout.bytes_per_block, chunk_bytes=settings.copy_chunk_bytes
        )
        self.costs = CopyCosts(always=settings.promote == "always")
        self.promotions = Promotions(
            link=self._link, copies=self._copies, costs=self.costs, layout=cache.layout, on_end=on_promoted
        )
        self.demotions = Demotions(link=self._link, copies=self._copies, cache=cache)

    def plan(self) -> tuple[BlockCopies, ...]:
        """What this plan must carry; asked last, so that what goes up comes first."""
        if not self.promotions.num_in_flight:
            self.demotions.begin_next()
        return self._copies.take_planned()

    def commit(self, results: Sequence[CopyResult]) -> None:
        """These copies have ended."""
        for result in results:
            if self._copies.end(result) == "promote":
                self.costs.promoted(num_bytes=result.num_bytes, copy_s=result.copy_s)

    @property
    def num_in_flight(self) -> int:
        return self._copies.num_in_flight

    @property
    def has_copies(self) -> bool:
        """Some are in flight, or will be with the next plans."""
        return bool(self._copies.num_in_flight) or self.demotions.is_waiting

    @property
    def host_state(self) -> str:
        return self._link.state

    @property
    def promoted(self) -> CopyTotals:
        return self._copies.totals["promote"]

    @property
    def demoted(self) -> CopyTotals:
        return self._copies.totals["demote"]
