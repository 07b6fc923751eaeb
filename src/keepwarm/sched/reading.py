"""Which names running turns are about to publish, so that others wait instead of reading them too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from keepwarm.core.ids import BlockHash


class Reading:
    """A bag of names: two turns may be about to publish the same one."""

    def __init__(self) -> None:
        self._counts: Counter[BlockHash] = Counter()

    def __len__(self) -> int:
        return len(self._counts)

    def __contains__(self, name: BlockHash) -> bool:
        return name in self._counts

    def begin(self, names: Iterable[BlockHash]) -> None:
        """Somebody will publish these."""
        self._counts.update(names)

    def end(self, names: Iterable[BlockHash]) -> None:
        """That somebody has published these, or never will; names that nobody announced are ignored."""
        for name in names:
            count = self._counts.pop(name, 0)
            if count > 1:
                self._counts[name] = count - 1
