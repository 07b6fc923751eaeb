"""A bounded memory of what was worked out before; the least recently used goes first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class BoundedMemo(Generic[Key, Value]):
    """At most `max_bytes`, as its callers count them. Threads may share one."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held_bytes = 0
        self._entries: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._lock = threading.Lock()
        """Around entries and bytes together, which would drift apart where two threads put one key."""

    def get(self, key: Key) -> Value | None:
        """The value, which is now the most recently used."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: Key, value: Value, num_bytes: int) -> None:
        """Remember; what is larger than the whole memory is not remembered."""
        with self._lock:
            self._forget(key)
            if num_bytes > self._max_bytes:  # it would only push out all others
                return
            self._held_bytes += num_bytes
            self._entries[key] = (value, num_bytes)
            while self._held_bytes > self._max_bytes:
                self._forget_oldest()

    def drop(self, key: Key) -> None:
        """Forget, where it is remembered."""
        with self._lock:
            self._forget(key)

    def drop_oldest(self) -> None:
        """Forget the least recently used, where there is one."""
        with self._lock:
            if self._entries:
                self._forget_oldest()

    def values(self) -> list[Value]:
        """All of them, as little used as they were."""
        with self._lock:
            return [value for value, _ in self._entries.values()]

    def items(self) -> list[tuple[Key, Value]]:
        """All of them, the least recently used first; as little used as they were."""
        with self._lock:
            return [(key, value) for key, (value, _) in self._entries.items()]

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    def __len__(self) -> int:
        return len(self._entries)

    def _forget(self, key: Key) -> None:
        old = self._entries.pop(key, None)
        if old is not None:
            self._held_bytes -= old[1]

    def _forget_oldest(self) -> None:
        _, (_, freed_bytes) = self._entries.popitem(last=False)
        self._held_bytes -= freed_bytes
