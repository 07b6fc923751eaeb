"""What became of the named blocks of device memory, for whoever keeps an index of them elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from keepwarm.core.hashing import join_hashes
from keepwarm.core.ids import BlockHash
from keepwarm.core.rank_messages import CacheEvent


class CacheLog:
    """Events since the last `take`, in order."""

    def __init__(self) -> None:
        self._events: list[CacheEvent] = []

    def stored(
        self, parent: BlockHash, names: Sequence[BlockHash], reason: Literal["computed", "promoted"]
    ) -> None:
        """`names`, each the child of the one before, can be hit from now on."""
        if names:
            joined = join_hashes(names)
            self._events.append(
                CacheEvent(kind="stored", tier="l0", names=joined, parent=parent, reason=reason)
            )

    def evicted(self, names: Sequence[BlockHash], reason: Literal["room", "cleared"]) -> None:
        if names:
            event = CacheEvent(kind="evicted", tier="l0", names=join_hashes(names), reason=reason)
            self._events.append(event)

    def take(self) -> tuple[CacheEvent, ...]:
        """Those since the last call."""
        events, self._events = tuple(self._events), []
        return events
