"""What a rank is told over the socket is what the index says in its own process: the host memory of
the simulator is the served one."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest

from keepwarm.cache.host_index import HostIndex, Owner
from keepwarm.core.host_tier import HostLease, HostTier
from keepwarm.core.ids import BlockHash
from tests.backend.hostcaches import named, running_hostcache

NUM_OPERATIONS = 400


class BothTiers:
    """One rank's tier over the socket and in this process; each operation is done to both."""

    def __init__(self, served: HostTier, here: HostTier) -> None:
        self._served = served
        self._here = here
        self.leases: list[tuple[HostLease, HostLease, bool]] = []

    def ask(self, after: BlockHash | None, names: list[BlockHash], *, reserves: bool) -> None:
        served, here = (
            tier.reserve(after, names) if reserves else tier.find(after, names)
            for tier in (self._served, self._here)
        )
        if served is None or here is None:
            assert served is here
            return
        assert served.slots.tolist() == here.slots.tolist()
        assert (served.num_present, served.num_from_disk) == (here.num_present, here.num_from_disk)
        self.leases.append((served, here, reserves))

    def end(self, at: int, *, writes: bool) -> None:
        served, here, reserved = self.leases.pop(at % len(self.leases))
        if reserved and writes:
            self._served.written(served)
            self._here.written(here)
        self._served.release(served)
        self._here.release(here)

    def drop(self, name: BlockHash) -> None:
        self._served.drop([name])
        self._here.drop([name])


@pytest.mark.parametrize("seed", [1, 2])
def test_any_history_is_the_same_over_the_socket_as_in_one_process(tmp_path: Path, seed: int) -> None:
    drawn = random.Random(seed)
    with running_hostcache(tmp_path, host_cache_gb=0.00025) as cache, contextlib.ExitStack() as clients:
        served = [clients.enter_context(contextlib.closing(cache.attach(rank))) for rank in range(2)]
        index = HostIndex(served[0].arena.layout.num_slots)
        assert index.num_slots < 40
        ranks = [BothTiers(client, index.for_owner(Owner(n))) for n, client in enumerate(served)]
        for _ in range(NUM_OPERATIONS):
            rank = drawn.choice(ranks)
            names = named("".join(drawn.choices("ab", k=drawn.randint(1, 7))))
            start = drawn.randrange(len(names))
            if len(rank.leases) > 2:
                rank.end(drawn.randrange(99), writes=drawn.random() < 0.8)
            elif drawn.random() < 0.02:
                rank.drop(names[-1])
            else:
                after = names[start - 1] if start else None
                rank.ask(after, names[start:], reserves=drawn.random() < 0.6)
        index.check()
        assert index.counters.evicted_for_room
        assert index.counters.found
