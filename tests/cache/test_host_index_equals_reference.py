"""After any history the index has done what its block-by-block model did, what a slot holds never
changes under a lease, and its events tell what is there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from keepwarm.cache import chains
from keepwarm.cache.host_index import HostIndex, Owner
from keepwarm.core.hashing import join_hashes
from keepwarm.core.host_tier import HostLease
from keepwarm.core.ids import BlockHash
from keepwarm.core.rank_messages import CacheEvent
from tests.cache.reference_index import ReferenceIndex, ReferenceLease

paths = st.text("ab", min_size=1, max_size=8)
OWNERS = (Owner(1), Owner(2))
NAME_BYTES = 16


def named(path: str) -> list[BlockHash]:
    """The names of a path's prefixes: the path itself, padded to a name's length."""
    return [BlockHash(path[:end].encode().ljust(NAME_BYTES, b".")) for end in range(1, len(path) + 1)]


def plain(names: list[BlockHash]) -> list[bytes]:
    return [name.rstrip(b".") for name in names]


@dataclass
class Open:
    owner: Owner
    ours: HostLease
    theirs: ReferenceLease
    names: list[BlockHash]
    """Of its slots."""
    reads: bool


class BothIndexes(RuleBasedStateMachine):
    @initialize(num_slots=st.integers(3, 30), max_slices=st.sampled_from([2, 32]))
    def start(self, num_slots: int, max_slices: int) -> None:
        self.index = HostIndex(num_slots)
        self.model = ReferenceIndex(num_slots)
        self.open: list[Open] = []
        self.memory: list[BlockHash | None] = [None] * num_slots
        self.told: dict[bytes, bytes] = {}
        self.limit = patch.object(chains, "_MAX_SLICES", max_slices)
        self.limit.start()

    def teardown(self) -> None:
        if hasattr(self, "limit"):
            self.limit.stop()

    @rule(path=paths, start=st.integers(0, 7), owner=st.sampled_from(OWNERS))
    def find(self, path: str, start: int, owner: Owner) -> None:
        names = named(path)
        start = min(start, len(names) - 1)
        ours = self.index.find(owner, names[start - 1] if start else None, names[start:])
        theirs = self.model.find(plain(names), start)
        assert (ours is None) == (theirs is None)
        if ours is None or theirs is None:
            return
        assert ours.num_present == theirs[1]
        found = names[start:][: ours.num_present]
        assert [self.memory[slot] for slot in ours.slots] == found
        self.open.append(Open(owner, ours, theirs[0], found, reads=True))

    @rule(path=paths, start=st.integers(0, 7), owner=st.sampled_from(OWNERS))
    def reserve(self, path: str, start: int, owner: Owner) -> None:
        names = named(path)
        start = min(start, len(names))
        ours = self.index.reserve(owner, names[start - 1] if start else None, names[start:])
        theirs = self.model.reserve(plain(names), start)
        assert (ours is None) == (theirs is None)
        if ours is None or theirs is None:
            return
        missing = names[start:][ours.num_present :]
        assert plain(missing) == theirs.unwritten
        for slot, name in zip(ours.slots, missing, strict=True):
            self.memory[slot] = name
        self.open.append(Open(owner, ours, theirs, missing, reads=False))

    @rule(path=paths, owner=st.sampled_from(OWNERS))
    def whole_demotion(self, path: str, owner: Owner) -> None:
        num_open = len(self.open)
        self.reserve(path, 0, owner)
        if len(self.open) > num_open:
            self.written(-1)
            self.release(-1)

    @precondition(lambda self: self.open)
    @rule(at=st.integers(0, 99))
    def written(self, at: int) -> None:
        lease = self.open[at % len(self.open)]
        self.index.written(lease.owner, lease.ours.lease_id)
        self.model.written(lease.theirs)

    @precondition(lambda self: self.open)
    @rule(at=st.integers(0, 99))
    def release(self, at: int) -> None:
        lease = self.open.pop(at % len(self.open))
        self.index.release(lease.owner, lease.ours.lease_id)
        self.model.release(lease.theirs)

    @rule(owner=st.sampled_from(OWNERS))
    def an_owner_dies(self, owner: Owner) -> None:
        theirs = [lease for lease in self.open if lease.owner == owner]
        assert self.index.release_owner(owner) == len(theirs)
        for lease in theirs:
            self.model.release(lease.theirs)
        self.open = [lease for lease in self.open if lease.owner != owner]

    @rule(path=paths)
    def drop(self, path: str) -> None:
        self.index.drop([named(path)[-1]])
        self.model.drop([path.encode()])

    @invariant()
    def both_say_the_same(self) -> None:
        occupancy = self.index.occupancy()
        assert occupancy.total == self.model.num_slots
        assert occupancy.empty == self.model.num_empty
        assert occupancy.cached == len(self.model.lru)
        assert occupancy.writing == sum(len(lease.own) for lease in self.model.leases)
        assert occupancy.total == occupancy.writing + occupancy.leased + occupancy.cached + occupancy.empty

    @invariant()
    def what_a_lease_holds_stays(self) -> None:
        for lease in self.open:
            assert [self.memory[slot] for slot in lease.ours.slots] == lease.names

    @invariant()
    def the_events_tell_what_is_there(self) -> None:
        apply(self.told, self.index.take_events())
        there: dict[bytes, bytes] = {}
        apply(there, self.index.contents())
        assert there == self.told
        assert sorted(plain([BlockHash(name) for name in there])) == sorted(self.model.known)

    @invariant()
    def the_check_agrees(self) -> None:
        self.index.check()


def apply(told: dict[bytes, bytes], events: Iterable[CacheEvent]) -> None:
    """Each name's parent, as a listener keeps it."""
    for event in events:
        names = [event.names[at : at + NAME_BYTES] for at in range(0, len(event.names), NAME_BYTES)]
        assert event.names == join_hashes([BlockHash(name) for name in names])
        if event.kind == "evicted":
            for name in names:
                del told[name]
            assert not [name for name, parent in told.items() if parent and parent not in told]
            continue
        for parent, name in zip([event.parent, *names], names, strict=False):
            assert name not in told
            assert not parent or parent in told
            told[name] = parent


TestBothIndexes = BothIndexes.TestCase
TestBothIndexes.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
