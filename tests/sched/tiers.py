"""Ranks over one L1: an index and an arena in this process, as the process that owns them has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from keepwarm.cache.host_index import HostIndex, Owner
from keepwarm.core.host_tier import HostArena, HostLease, HostTier, HostTierLost
from keepwarm.core.ids import BlockHash
from keepwarm.core.step import ExecutorLimits
from keepwarm.sched.scheduler import SchedulerSettings
from keepwarm.sched.settings import Demote, Promote
from tests.engine.arenas import make_arena
from tests.sched.driver import Rank, make_limits


@dataclass
class SlowerTier:
    """A `HostTier` that says, as often as it is told to, that a slower tier is bringing something up,
    and can be lost."""

    index: HostIndex
    owner: Owner
    num_waits: int = 0
    lost: str | None = None
    num_calls: int = 0

    def __post_init__(self) -> None:
        self._inner = self.index.for_owner(self.owner)

    def lose(self, reason: str) -> None:
        """Its owner is gone for this rank, and knows it: all leases end."""
        self.lost = reason
        self.index.release_owner(self.owner)

    def _ask(self) -> HostTier:
        self.num_calls += 1
        if self.lost is not None:
            raise HostTierLost(self.lost)
        return self._inner

    def find(self, after: BlockHash | None, names: Sequence[BlockHash]) -> HostLease | None:
        return self._ask().find(after, names)

    def prefetch(self, after: BlockHash | None, names: Sequence[BlockHash]) -> bool:
        self._ask()
        self.num_waits -= 1
        return self.num_waits >= 0

    def reserve(self, after: BlockHash | None, names: Sequence[BlockHash]) -> HostLease | None:
        return self._ask().reserve(after, names)

    def written(self, lease: HostLease) -> None:
        self._ask().written(lease)

    def release(self, lease: HostLease) -> None:
        self._ask().release(lease)

    def drop(self, names: Sequence[BlockHash]) -> None:
        self._ask().drop(names)

    def switch_off(self, reason: str) -> None:
        self._ask().switch_off(reason)


@dataclass
class Host:
    """L1 and its ranks; each rank is an owner of its own."""

    num_slots: int = 256
    limits: ExecutorLimits = field(default_factory=lambda: make_limits(num_blocks=32))
    num_ranks: int = 0
    index: HostIndex = field(init=False)
    arena: HostArena = field(init=False)

    def __post_init__(self) -> None:
        self.index = HostIndex(self.num_slots)
        self.arena = make_arena(self.limits.layout, num_slots=self.num_slots)

    def rank(
        self,
        *,
        demote: Demote = "turn_end",
        promote: Promote = "cheaper",
        budget: int = 16,
        reserve: int = 8,
        depth: int = 1,
        copy_steps: int = 0,
        chunk_blocks: int = 1_000,
    ) -> Rank:
        self.num_ranks += 1
        settings = SchedulerSettings(
            max_num_batched_tokens=budget,
            output_reserve_tokens=reserve,
            demote=demote,
            promote=promote,
            copy_chunk_bytes=chunk_blocks * self.limits.layout.bytes_per_block,
        )
        return Rank(
            limits=self.limits,
            settings=settings,
            depth=depth,
            copy_steps=copy_steps,
            host=SlowerTier(self.index, Owner(self.num_ranks)),
            arena=self.arena,
        )

    def kill_rank(self) -> None:
        """The last one died: nothing that it began goes on."""
        self.index.release_owner(Owner(self.num_ranks))
        self.index.check()

    def check_at_rest(self) -> None:
        """Nobody reads or writes a slot."""
        self.index.check()
        occupancy = self.index.occupancy()
        assert (occupancy.writing, occupancy.leased) == (0, 0)


def tier_of(rank: Rank) -> SlowerTier:
    assert isinstance(rank.host, SlowerTier)
    return rank.host
