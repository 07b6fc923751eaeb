"""An append-only array that successive versions of a conversation share.

A version is (array, length). Whoever appends to the newest version writes behind it in place;
whoever appends to an older one (a rewound conversation, a second request at the same time) gets a
copy. What a version sees never changes.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

Item = TypeVar("Item", bound=np.generic)

_SPARE = 1.25
"""Capacity over need when an array moves: a long conversation moves every few dozen turns."""


class GrowingArray(Generic[Item]):
    """Threads may share one: the end is claimed by a single operation on a set."""

    def __init__(self, items: npt.NDArray[Item]) -> None:
        self._items = np.empty(int(len(items) * _SPARE) + 64, dtype=items.dtype)
        self._items[: len(items)] = items
        self._end = {len(items)}
        """Where the newest version ends; empty while somebody appends to it."""

    def view(self, length: int) -> npt.NDArray[Item]:
        """The first `length` items, without a copy."""
        view: npt.NDArray[Any] = self._items[:length]
        view.flags.writeable = False
        return view

    def appended(self, length: int, more: npt.NDArray[Item]) -> GrowingArray[Item]:
        """An array that begins with the first `length` items of this one and goes on with `more`."""
        end = length + len(more)
        if not len(more):
            return self
        if end <= len(self._items) and self._claims(length):
            self._items[length:end] = more
            self._end.add(end)
            return self
        return GrowingArray(np.concatenate([self._items[:length], more]))

    def _claims(self, length: int) -> bool:
        try:
            self._end.remove(length)
        except KeyError:
            return False
        return True

    @property
    def num_bytes(self) -> int:
        return self._items.nbytes
