"""Records: the last under each key, and no more than fit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from keepwarm.backend.host_records import HostRecords

LIMIT_BYTES = 2000
puts = st.lists(st.tuples(st.binary(max_size=2), st.binary(max_size=2100)), max_size=30)


def all_of(records: HostRecords) -> list[tuple[bytes, bytes]]:
    return [record for batch in records.batches() for record in batch]


def test_the_last_record_under_a_key_counts_and_is_the_newest() -> None:
    records = HostRecords(LIMIT_BYTES)
    for key, value in [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]:
        records.put(key, value)
    assert all_of(records) == [(b"b", b"2"), (b"a", b"3")]


@given(puts)
def test_no_more_than_fits_is_kept_each_key_once_with_its_last_value(
    records_put: list[tuple[bytes, bytes]],
) -> None:
    records = HostRecords(LIMIT_BYTES)
    for key, value in records_put:
        records.put(key, value)
    kept = all_of(records)
    assert records.num_bytes == sum(len(key) + len(value) + 200 for key, value in kept) <= LIMIT_BYTES
    newest = dict(records_put)
    assert all(newest[key] == value for key, value in kept)
    assert len({key for key, _ in kept}) == len(kept)


def test_many_records_come_in_several_batches() -> None:
    records = HostRecords(10_000_000)
    for number in range(30):
        records.put(bytes([number]), bytes(100_000))
    batches = [*records.batches()]
    assert len(batches) > 1
    assert [record for batch in batches for record in batch] == [
        (bytes([number]), bytes(100_000)) for number in range(30)
    ]
