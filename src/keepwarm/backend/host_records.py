"""Small opaque records that outlive the front, bounded in bytes. Knows nothing of what they say."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

Record = tuple[bytes, bytes]
"""Key and value."""

_OVERHEAD_BYTES = 200
"""What a record costs beside its key and value: two objects and an entry."""
_BATCH_BYTES = 1 << 20


class HostRecords:
    """The last record put under each key; the ones put longest ago make room."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._records: OrderedDict[bytes, bytes] = OrderedDict()
        self.num_bytes = 0

    def put(self, key: bytes, value: bytes) -> None:
        """One that is larger than everything together may be is not kept."""
        old = self._records.pop(key, None)
        if old is not None:
            self.num_bytes -= _cost(key, old)
        if _cost(key, value) > self._limit_bytes:
            return
        self._records[key] = value
        self.num_bytes += _cost(key, value)
        while self.num_bytes > self._limit_bytes:
            self.num_bytes -= _cost(*self._records.popitem(last=False))

    def batches(self) -> Iterator[tuple[Record, ...]]:
        """All of them, oldest first, some at a time."""
        batch: list[Record] = []
        num_bytes = 0
        for record in list(self._records.items()):
            batch.append(record)
            num_bytes += _cost(*record)
            if num_bytes > _BATCH_BYTES:
                yield tuple(batch)
                batch, num_bytes = [], 0
        if batch:
            yield tuple(batch)


def _cost(key: bytes, value: bytes) -> int:
    return len(key) + len(value) + _OVERHEAD_BYTES
