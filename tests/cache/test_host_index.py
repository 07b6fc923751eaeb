"""The index of host memory by itself: who may read what, what is held, and what is told."""

from __future__ import annotations

import pytest

from keepwarm.cache.host_index import HostIndex, Owner
from keepwarm.core.errors import InvariantBroken
from keepwarm.core.host_tier import HostLease, HostTier, HostTierLost
from keepwarm.core.ids import BlockHash
from tests.cache.test_host_index_equals_reference import named

ANNA, BERT = Owner(1), Owner(2)


def store(tier: HostTier, path: str) -> None:
    lease = tier.reserve(None, named(path))
    assert lease is not None
    tier.written(lease)
    tier.release(lease)


def found(tier: HostTier, path: str, after: str = "") -> HostLease:
    lease = tier.find(named(after)[-1] if after else None, named(path)[len(after) :])
    assert lease is not None
    return lease


def test_what_one_owner_wrote_another_one_finds() -> None:
    index = HostIndex(8)
    store(index.for_owner(ANNA), "abc")
    lease = found(index.for_owner(BERT), "abcd")
    assert (lease.num_present, len(lease.slots)) == (3, 3)


def test_what_follows_a_name_is_found_without_what_stands_before() -> None:
    tier = HostIndex(8).for_owner(ANNA)
    store(tier, "abcd")
    assert found(tier, "abcd", after="ab").slots.tolist() == found(tier, "abcd").slots.tolist()[2:]
    assert tier.find(named("x")[-1], named("xy")[1:]) is None


def test_nothing_is_found_before_it_is_written() -> None:
    tier = HostIndex(8).for_owner(ANNA)
    lease = tier.reserve(None, named("abc"))
    assert lease is not None
    assert tier.find(None, named("abc")) is None
    tier.written(lease)
    assert found(tier, "abc").slots.tolist() == lease.slots.tolist()


def test_only_what_is_missing_is_reserved() -> None:
    tier = HostIndex(8).for_owner(ANNA)
    store(tier, "abc")
    lease = tier.reserve(None, named("abcde"))
    assert lease is not None
    assert (lease.num_present, len(lease.slots)) == (3, 2)
    assert tier.reserve(named("xy")[-1], named("xyz")[2:]) is None  # nobody wrote its parent


def test_two_who_write_the_same_at_once_leave_one_copy() -> None:
    index = HostIndex(8)
    anna, bert = index.for_owner(ANNA), index.for_owner(BERT)
    leases = [(tier, tier.reserve(None, named("abc"))) for tier in (anna, bert)]
    for tier, lease in leases:
        assert lease is not None
        tier.written(lease)
    assert index.occupancy().leased == 6  # each may still look at its own
    for tier, lease in leases:
        assert lease is not None
        tier.release(lease)
    assert index.occupancy().cached == 3
    assert [event.names for event in index.take_events()] == [b"".join(named("abc"))]


def test_what_is_leased_is_not_evicted_and_a_reservation_without_room_changes_nothing() -> None:
    index = HostIndex(4)
    tier = index.for_owner(ANNA)
    store(tier, "abc")
    reading = found(tier, "ab")
    assert tier.reserve(None, named("vwx")) is None
    assert index.counters.refused == 3
    assert tier.reserve(None, named("vw")) is not None
    assert index.counters.evicted_for_room == 1  # the leaf, which nobody reads
    assert found(tier, "abc").slots.tolist() == reading.slots.tolist()
    index.check()


def test_whose_conversation_was_used_last_stays_longest() -> None:
    index = HostIndex(6)
    tier = index.for_owner(ANNA)
    store(tier, "abc")
    store(tier, "xyz")
    tier.release(found(tier, "abc"))
    store(tier, "k")
    assert found(tier, "xyz").num_present == 2
    assert found(tier, "abc").num_present == 3


def test_a_dead_owner_leaves_no_lease_and_no_half_written_slot() -> None:
    index = HostIndex(8)
    anna, bert = index.for_owner(ANNA), index.for_owner(BERT)
    store(anna, "ab")
    found(anna, "ab")
    anna.reserve(named("ab")[-1], named("abcde")[2:])
    bert.reserve(None, named("x"))
    assert index.release_owner(ANNA) == 2
    occupancy = index.occupancy()
    assert (occupancy.writing, occupancy.leased, occupancy.cached, occupancy.empty) == (1, 0, 2, 5)
    assert index.counters.reclaimed == 3
    index.check()


def test_a_lease_is_its_owner_s_alone_and_is_released_once() -> None:
    index = HostIndex(8)
    anna, bert = index.for_owner(ANNA), index.for_owner(BERT)
    store(anna, "a")
    lease = found(anna, "a")
    with pytest.raises(InvariantBroken, match="owner 2 has no lease 2"):
        bert.release(lease)
    anna.release(lease)
    with pytest.raises(InvariantBroken, match="owner 1 has no lease 2"):
        anna.release(lease)


def test_what_was_dropped_is_not_found_nor_is_what_follows_it() -> None:
    index = HostIndex(8)
    tier = index.for_owner(ANNA)
    store(tier, "abcd")
    reading = found(tier, "abcd")
    writing = tier.reserve(named("abcd")[-1], named("abcde")[4:])
    assert writing is not None
    tier.drop([named("abc")[-1]])
    assert found(tier, "abcd").num_present == 2
    tier.written(writing)  # its parent is gone: nobody could find it
    assert index.occupancy().leased == 5
    tier.release(writing)
    tier.release(reading)
    assert index.occupancy().empty == 6
    assert [(event.kind, event.reason) for event in index.take_events()] == [
        ("stored", "demoted"),
        ("evicted", "dropped"),
    ]


def test_a_tier_that_is_switched_off_holds_nothing_and_takes_nothing() -> None:
    index = HostIndex(8)
    anna, bert = index.for_owner(ANNA), index.for_owner(BERT)
    store(anna, "abc")
    reading = found(anna, "ab")
    bert.switch_off("a checksum is wrong")
    with pytest.raises(HostTierLost, match="switched off: a checksum is wrong"):
        anna.find(None, named("abc"))
    with pytest.raises(HostTierLost):
        anna.reserve(None, named("x"))
    anna.release(reading)
    assert index.occupancy().empty == 8
    index.check()


def test_what_came_from_a_slower_tier_is_counted_for_the_one_it_was_brought_up_for() -> None:
    index = HostIndex(8)
    tier = index.for_owner(ANNA)
    store(tier, "a")
    disk = Owner(9)
    lease = index.reserve(disk, named("a")[-1], named("abc")[1:])
    assert lease is not None
    index.written(disk, lease.lease_id, reason="loaded")
    index.release(disk, lease.lease_id)
    assert index.take_events()[-1].reason == "loaded"
    first = found(tier, "abc")
    assert first.num_from_disk == 2
    tier.release(first)
    assert found(tier, "abc").num_from_disk == 0


def test_names_that_do_not_follow_what_they_are_said_to_follow_are_our_mistake() -> None:
    tier = HostIndex(8).for_owner(ANNA)
    store(tier, "abc")
    with pytest.raises(InvariantBroken, match="do not follow"):
        tier.find(named("a")[-1], [BlockHash(named("abc")[-1])])
