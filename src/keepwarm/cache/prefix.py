"""L0: the blocks of one rank's device memory and the prefixes they hold.

A block is in exactly one state:

                  acquire/extend                    release (named)
        empty ───────────────────────▶ held ─────────────────────────▶ cached
          ▲                            │  ▲                              │ │
          └──── release (unnamed) ─────┘  └───── acquire (a hit) ────────┘ │
          └──────────────────────── eviction, when room is needed ─────────┘

*held*: at least one holding refers to it. *named*: its KV is computed and its chain hash
published, so others may share it. *cached*: named and held by nobody, on the LRU list.

Two invariants carry the rest. A named block's parent is named: holdings are prefixes, a block
is published after its parent, and releasing appends children to the LRU list before their
parents, so leaves are evicted first. A name belongs to one block: who computes a prefix a
second time swaps its block for the first one (`Replacement`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from keepwarm.cache.runs import EmptyRuns
from keepwarm.core.errors import InvariantBroken
from keepwarm.core.ids import BlockHash, BlockId
from keepwarm.core.layout import CacheLayout


@dataclass(slots=True, kw_only=True)
class Holding:
    """One sequence's blocks in order; changed only by the `PrefixCache` that made it."""

    blocks: list[BlockId]
    num_cached_blocks: int
    """Blocks [0, num_cached_blocks) held somebody's computed KV when acquired."""
    num_named: int
    """Blocks [0, num_named) are shareable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """Block `index` of a holding is now `new`. `old` stays held until `drop(old)`."""

    index: int
    old: BlockId
    new: BlockId


@dataclass(slots=True, kw_only=True)
class CacheCounters:
    """Since start."""

    evicted_blocks: int = 0
    shared_blocks: int = 0
    """Blocks handed out by a hit."""
    replaced_blocks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """Blocks by state, now. held + cached + empty = total."""

    total: int
    held: int
    cached: int
    empty: int


@dataclass(slots=True, kw_only=True)
class _Block:
    references: int = 0
    name: BlockHash | None = None


@dataclass(slots=True)
class PrefixCache:
    """The sole owner of a rank's block states. Not thread-safe: one engine thread calls it."""

    layout: CacheLayout
    num_blocks: int
    counters: CacheCounters = field(default_factory=CacheCounters)
    _blocks: list[_Block] = field(init=False)
    _by_name: dict[BlockHash, BlockId] = field(init=False, default_factory=dict)
    _lru: OrderedDict[BlockId, None] = field(init=False, default_factory=OrderedDict)
    _empty: EmptyRuns = field(init=False)

    def __post_init__(self) -> None:
        self._blocks = [_Block() for _ in range(self.num_blocks)]
        self._empty = EmptyRuns(self.num_blocks)

    def match(self, names: Sequence[BlockHash], *, max_tokens: int) -> int:
        """How many leading blocks of `names` every layer group can give back, in at most
        `max_tokens` tokens."""
        if any(group.kind == "state" for group in self.layout.groups):
            return 0  # a state exists only where its sequence stands; nothing to resume from
        limit = min(len(names), max_tokens // self.layout.block_size)
        by_name = self._by_name
        for index in range(limit):
            if names[index] not in by_name:
                return index
        return limit

    def acquire(
        self, names: Sequence[BlockHash], *, num_tokens: int, max_cached_tokens: int
    ) -> Holding | None:
        """Hold blocks for `num_tokens`: what is cached by reference, the rest fresh, as few
        runs as can be. None when there is no room now; then nothing changed.
        """
        num_hits = self.match(names, max_tokens=min(max_cached_tokens, num_tokens))
        hits = [self._by_name[name] for name in names[:num_hits]]
        num_fresh = self.layout.blocks_for(num_tokens) - num_hits
        num_revived = sum(self._blocks[block].references == 0 for block in hits)
        if num_fresh > len(self._empty) + len(self._lru) - num_revived:
            return None
        for block in hits:
            self._hold(block)
        fresh = self._take(num_fresh, after=hits[-1] if hits else None)
        self.counters.shared_blocks += num_hits
        return Holding(blocks=hits + fresh, num_cached_blocks=num_hits, num_named=num_hits)

    def extend(self, holding: Holding, num_blocks: int) -> list[BlockId] | None:
        """Append fresh blocks and return them. None when there is no room now."""
        if num_blocks > len(self._empty) + len(self._lru):
            return None
        fresh = self._take(num_blocks, after=holding.blocks[-1] if holding.blocks else None)
        holding.blocks += fresh
        return fresh

    def publish(self, holding: Holding, names: Sequence[BlockHash]) -> list[Replacement]:
        """The blocks after `holding.num_named` are computed and called `names`, in order.

        Where somebody published a name first, that block takes this one's place; the caller
        tells the executor and then calls `drop(old)` once nothing in flight reads it.
        """
        replacements: list[Replacement] = []
        for index, name in enumerate(names, start=holding.num_named):
            own = holding.blocks[index]
            known = self._by_name.get(name)
            if known is None:
                self._by_name[name] = own
                self._blocks[own].name = name
            elif known != own:
                self._hold(known)
                holding.blocks[index] = known
                replacements.append(Replacement(index=index, old=own, new=known))
        holding.num_named += len(names)
        self.counters.replaced_blocks += len(replacements)
        return replacements

    def release(self, holding: Holding) -> None:
        """Give a holding back. Last block first, so that leaves are evicted before roots."""
        for block in reversed(holding.blocks):
            self.drop(block)
        holding.blocks = []

    def drop(self, block: BlockId) -> None:
        """Give one reference back."""
        state = self._blocks[block]
        if state.references <= 0:
            raise InvariantBroken(f"block {block} released more often than held")
        state.references -= 1
        if state.references:
            return
        if state.name is None:
            self._empty.add(block)
        else:
            self._lru[block] = None

    def clear(self) -> int:
        """Forget every cached block that nobody holds; returns how many."""
        num_cleared = len(self._lru)
        self._evict(num_cleared)
        return num_cleared

    def occupancy(self) -> Occupancy:
        """Blocks by state, now."""
        cached, empty = len(self._lru), len(self._empty)
        return Occupancy(
            total=self.num_blocks, held=self.num_blocks - cached - empty, cached=cached, empty=empty
        )

    def check(self, held_references: Iterable[BlockId]) -> None:
        """Raise `InvariantBroken` unless states, names and references agree.

        `held_references` lists every reference the caller still has, one entry each. O(blocks).
        """
        expected = [0] * self.num_blocks
        for block in held_references:
            expected[block] += 1
        empty = set(self._empty)
        if len(empty) != len(self._empty):
            raise InvariantBroken("the empty runs overlap or miscount")
        for index, state in enumerate(self._blocks):
            self._check_block(BlockId(index), state, expected[index], index in empty)
        for name, block in self._by_name.items():
            if self._blocks[block].name != name:
                raise InvariantBroken(f"name {name.hex()} points at block {block}, which has another")

    def _check_block(self, block: BlockId, state: _Block, references: int, is_empty: bool) -> None:
        if state.references != references:
            raise InvariantBroken(f"block {block}: {state.references} references, {references} holders")
        is_cached = block in self._lru
        if is_cached + is_empty + (references > 0) != 1:
            raise InvariantBroken(f"block {block}: cached={is_cached} empty={is_empty} held={references}")
        if is_cached and state.name is None:
            raise InvariantBroken(f"block {block} is cached without a name")
        if is_empty and state.name is not None:
            raise InvariantBroken(f"block {block} is empty but named")
        if state.name is not None and self._by_name.get(state.name) != block:
            raise InvariantBroken(f"block {block} is not found by its name")

    def _hold(self, block: BlockId) -> None:
        state = self._blocks[block]
        if state.references == 0:
            del self._lru[block]
        state.references += 1

    def _take(self, count: int, *, after: BlockId | None) -> list[BlockId]:
        self._evict(count - len(self._empty))
        fresh = self._empty.take(count, after=after)
        for block in fresh:
            self._blocks[block].references = 1
        return fresh

    def _evict(self, count: int) -> None:
        for _ in range(count):
            block, _none = self._lru.popitem(last=False)
            state = self._blocks[block]
            if state.name is None:
                raise InvariantBroken(f"block {block} on the LRU list has no name")
            del self._by_name[state.name]
            state.name = None
            self._empty.add(block)
            self.counters.evicted_blocks += 1
