"""The prefix cache a block at a time, in plain Python: what the fast one must equal.

Keeps no arrays, no chains and no log: a list of references, a dictionary of names, an
`OrderedDict` of cached blocks, and a set of empty ones from which `EmptyRuns` would choose.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from keepwarm.cache.runs import EmptyRuns
from keepwarm.core.ids import BlockHash, BlockId, block_ids


@dataclass
class ReferenceHolding:
    blocks: list[int]
    num_named: int


@dataclass
class ReferenceCache:
    block_size: int
    num_blocks: int
    evicted: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.references = [0] * self.num_blocks
        self.names: list[BlockHash | None] = [None] * self.num_blocks
        self.by_name: dict[BlockHash, int] = {}
        self.lru: OrderedDict[int, None] = OrderedDict()
        self.empty = EmptyRuns(self.num_blocks)

    def match(self, names: Sequence[BlockHash], max_tokens: int) -> int:
        limit = min(len(names), max_tokens // self.block_size)
        return next((index for index in range(limit) if names[index] not in self.by_name), limit)

    def acquire(
        self, names: Sequence[BlockHash], num_tokens: int, max_cached_tokens: int
    ) -> ReferenceHolding | None:
        num_hits = self.match(names, min(max_cached_tokens, num_tokens))
        hits = [self.by_name[name] for name in names[:num_hits]]
        num_fresh = -(-num_tokens // self.block_size) - num_hits
        num_revived = sum(self.references[block] == 0 for block in hits)
        if num_fresh > len(self.empty) + len(self.lru) - num_revived:
            return None
        for block in hits:
            self._hold(block)
        fresh = self._take(num_fresh, after=hits[-1] if hits else None)
        return ReferenceHolding(blocks=hits + fresh, num_named=num_hits)

    def extend(self, holding: ReferenceHolding, num_blocks: int) -> bool:
        if num_blocks > len(self.empty) + len(self.lru):
            return False
        holding.blocks += self._take(num_blocks, after=holding.blocks[-1] if holding.blocks else None)
        return True

    def publish(self, holding: ReferenceHolding, names: Sequence[BlockHash]) -> list[tuple[int, int, int]]:
        """(index, old, new) of each block that another one replaces."""
        replaced = []
        for index, name in enumerate(names, start=holding.num_named):
            own = holding.blocks[index]
            known = self.by_name.get(name)
            if known is None:
                self.by_name[name] = own
                self.names[own] = name
            else:
                self._hold(known)
                holding.blocks[index] = known
                replaced.append((index, own, known))
        holding.num_named += len(names)
        return replaced

    def release(self, holding: ReferenceHolding) -> None:
        for block in reversed(holding.blocks):
            self.drop(block)

    def drop(self, block: int) -> None:
        self.references[block] -= 1
        if self.references[block]:
            return
        if self.names[block] is None:
            self.empty.add(block_ids([block]))
        else:
            self.lru[block] = None

    def clear(self) -> None:
        self._evict(len(self.lru))

    def _hold(self, block: int) -> None:
        if self.references[block] == 0:
            del self.lru[block]
        self.references[block] += 1

    def _take(self, count: int, *, after: int | None) -> list[int]:
        self._evict(count - len(self.empty))
        fresh: list[int] = self.empty.take(count, after=None if after is None else BlockId(after)).tolist()
        for block in fresh:
            self.references[block] = 1
        return fresh

    def _evict(self, count: int) -> None:
        for _ in range(count):
            block, _none = self.lru.popitem(last=False)
            name = self.names[block]
            assert name is not None
            del self.by_name[name]
            self.names[block] = None
            self.empty.add(block_ids([block]))
            self.evicted.append(block)
