"""Host memory is all ranks' and all tenants': what keeps tenants apart there is the blocks' names."""

from __future__ import annotations

from keepwarm.cache.host_index import HostIndex, Owner
from keepwarm.core.hashing import BlockHasher, root_hash
from keepwarm.core.ids import BlockHash, TenantId, token_ids

KEY = bytes(32)
HASHER = BlockHasher(key=KEY, block_size=4)
PROMPT = token_ids(range(40))
RANK, OTHER_RANK = Owner(1), Owner(2)


def names_for(tenant: str, key: bytes = KEY) -> list[BlockHash]:
    hasher = BlockHasher(key=key, block_size=4)
    return hasher.extend(root_hash(key, TenantId(tenant), b"model"), PROMPT)


def index_with(names: list[BlockHash]) -> HostIndex:
    index = HostIndex(num_slots=100)
    lease = index.reserve(RANK, None, names)
    assert lease is not None
    index.written(RANK, lease.lease_id)
    index.release(RANK, lease.lease_id)
    return index


def test_another_tenant_finds_nothing_of_the_same_prompt_on_any_rank() -> None:
    index = index_with(names_for("ada"))
    assert index.find(OTHER_RANK, None, names_for("ada")) is not None
    for owner in (RANK, OTHER_RANK):
        assert index.find(owner, None, names_for("bob")) is None


def test_its_look_up_says_what_that_in_an_empty_memory_says() -> None:
    with_ada, empty = index_with(names_for("ada")), HostIndex(num_slots=100)
    for names in (names_for("bob"), names_for("carol")):
        for index in (with_ada, empty):
            before = index.counters.not_found
            assert index.find(RANK, None, names) is None
            assert index.counters.not_found - before == len(names)


def test_what_it_demotes_takes_slots_of_its_own() -> None:
    index = index_with(names_for("ada"))
    lease = index.reserve(RANK, None, names_for("bob"))
    assert lease is not None
    assert (lease.num_present, len(lease.slots)) == (0, 10)
    index.written(RANK, lease.lease_id)
    mine, theirs = [index.find(RANK, None, names_for(tenant)) for tenant in ("ada", "bob")]
    assert mine is not None
    assert theirs is not None
    assert not set(mine.slots.tolist()) & set(theirs.slots.tolist())


def test_an_installation_with_another_secret_finds_nothing() -> None:
    assert index_with(names_for("ada")).find(RANK, None, names_for("ada", bytes([1]) * 32)) is None
