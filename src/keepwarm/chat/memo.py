"""A bounded memory of what was worked out before; the least recently used goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from contextlib import suppress
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class BoundedMemo(Generic[Key, Value]):
    """At most `max_bytes`, as its callers count them.

    Threads may share one: each step is a single dictionary operation, and an entry that another
    thread moves at the same moment is only missed.
    """

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held_bytes = 0
        self._entries: OrderedDict[Key, tuple[Value, int]] = OrderedDict()

    def get(self, key: Key) -> Value | None:
        """The value, which is now the most recently used."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        with suppress(KeyError):  # another thread has just dropped it
            self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: Key, value: Value, num_bytes: int) -> None:
        """Remember; what is larger than the whole memory is not remembered."""
        old = self._entries.pop(key, None)
        if old is not None:
            self._held_bytes -= old[1]
        if num_bytes > self._max_bytes:  # it would only push out all others
            return
        self._held_bytes += num_bytes
        self._entries[key] = (value, num_bytes)
        while self._held_bytes > self._max_bytes and self._entries:
            _, (_, freed_bytes) = self._entries.popitem(last=False)
            self._held_bytes -= freed_bytes

    def drop(self, key: Key) -> None:
        """Forget, where it is remembered."""
        old = self._entries.pop(key, None)
        if old is not None:
            self._held_bytes -= old[1]

    def values(self) -> list[Value]:
        """All of them, as they stand now."""
        return [value for value, _ in tuple(self._entries.values())]

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    def __len__(self) -> int:
        return len(self._entries)
