"""What a tier holds, for whoever is not its owner and is told of each change (`CacheEvent`).

Knows names and which one stands before each; not where a block lies, nor who holds it.
"""

from __future__ import annotations

from collections.abc import Iterator, KeysView, Sequence

from keepwarm.core.hashing import BlockNames
from keepwarm.core.ids import BlockHash
from keepwarm.core.rank_messages import CacheEvent

Run = tuple[BlockHash, Sequence[BlockHash]]
"""Names in order, each the child of the one before, and the parent of the first."""


class ToldIndex:
    """Complete once every event since the tier was empty was taken, in order."""

    def __init__(self) -> None:
        self._parents: dict[BlockHash, BlockHash] = {}
        """By name. A parent comes before its children: blocks are stored after it, evicted before."""

    def __len__(self) -> int:
        return len(self._parents)

    @property
    def names(self) -> KeysView[BlockHash]:
        """Of all blocks that are there."""
        return self._parents.keys()

    def take(self, event: CacheEvent) -> None:
        """A name that is stored again, or evicted and not there, changes nothing."""
        names = BlockNames(event.names)[:]
        if event.kind == "evicted":
            for name in names:
                self._parents.pop(name, None)
            return
        parent = BlockHash(event.parent)
        for name in names:
            self._parents[name] = parent
            parent = name

    def clear(self) -> None:
        """Nothing is there any more."""
        self._parents.clear()

    def copy(self) -> ToldIndex:
        """As it is now; costs one pass that runs no Python."""
        copied = ToldIndex()
        copied._parents = self._parents.copy()
        return copied

    def runs(self, *, max_names: int) -> Iterator[Run]:
        """All of it, in pieces of a bounded size; `take` in this order gives the same index."""
        run: list[BlockHash] = []
        first_parent = BlockHash(b"")
        for name, parent in self._parents.items():
            if run and (run[-1] != parent or len(run) == max_names):
                yield first_parent, run
                run = []
            if not run:
                first_parent = parent
            run.append(name)
        if run:
            yield first_parent, run
