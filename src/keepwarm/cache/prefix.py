"""L0: the blocks of one rank's device memory and the prefixes they hold.

A block is in exactly one state:

                  acquire/extend                    release (named)
        empty ───────────────────────▶ held ─────────────────────────▶ cached
          ▲                            │  ▲                              │ │
          └──── release (unnamed) ─────┘  └───── acquire (a hit) ────────┘ │
          └──────────────────────── eviction, when room is needed ─────────┘

*held*: at least one holding refers to it. *named*: its KV is computed and its chain hash
published, so others may share it. *cached*: named and held by nobody, in the eviction queue.

Two invariants carry the rest. A named block's parent is named: holdings are prefixes, a block
is published after its parent, and releasing queues children before their parents, so leaves
are evicted first. A name belongs to one block: who computes a prefix a second time swaps its
block for the first one (`Replacement`).

From the first follows what keeps a long conversation cheap. Along a chain of names those that
are known come first, so a hit is found by halving, and its last block says which ones stand
before it (`Chains`). So a turn costs Python for its new blocks, and a few array operations for
those it shares.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress
from operator import is_not
from typing import Literal

import numpy as np
import numpy.typing as npt

from keepwarm.cache.chains import Chains
from keepwarm.cache.eviction import EvictionQueue
from keepwarm.cache.runs import EmptyRuns
from keepwarm.cache.window_pool import WindowHolding, WindowPool
from keepwarm.core.errors import InvariantBroken
from keepwarm.core.ids import BlockHash, BlockId, BlockIds, block_ids
from keepwarm.core.layout import CacheLayout


@dataclass(slots=True, kw_only=True)
class Holding:
    """One sequence's blocks in order; changed only by the `PrefixCache` that made it."""

    blocks: BlockIds
    num_cached_blocks: int
    """Blocks [0, num_cached_blocks) held somebody's computed KV when acquired."""
    num_named: int
    """Blocks [0, num_named) are shareable; the others are this holding's alone."""
    window: WindowHolding | None = None
    """Its blocks of the layers with a window, where those have blocks of their own."""


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
    replaced_blocks: int = 0
    replayed_blocks: int = 0
    """Known, and computed again because the window before a later one was gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """Blocks by state, now. held + cached + empty = total."""

    total: int
    held: int
    cached: int
    empty: int


EvictionReason = Literal["room", "cleared"]
OnEvict = Callable[[BlockIds, list[BlockHash], EvictionReason], None]
"""Told which blocks are about to lose which names, while they still have them and hold what they
held. May hold others (`acquire_after`); must not take any."""


@dataclass(slots=True)
class PrefixCache:
    """The sole owner of a rank's block states. Not thread-safe: one engine thread calls it."""

    layout: CacheLayout
    num_blocks: int
    windows: WindowPool | None = None
    """Beside the blocks here, those of the layers with a window; None: they are part of these."""
    on_evict: OnEvict | None = None
    counters: CacheCounters = field(default_factory=CacheCounters)
    _references: npt.NDArray[np.int64] = field(init=False)
    _names: list[BlockHash | None] = field(init=False)
    """A block's name; the inverse of `_by_name`."""
    _by_name: dict[BlockHash, BlockId] = field(init=False, default_factory=dict)
    _chains: Chains = field(init=False)
    _evictable: EvictionQueue = field(init=False)
    _empty: EmptyRuns = field(init=False)

    def __post_init__(self) -> None:
        self._references = np.zeros(self.num_blocks, dtype=np.int64)
        self._names = [None] * self.num_blocks
        self._chains = Chains(self.num_blocks)
        self._evictable = EvictionQueue(self._references)
        self._empty = EmptyRuns(self.num_blocks)

    def match(self, names: Sequence[BlockHash], *, max_tokens: int) -> int:
        """How many leading blocks of `names` every layer group can give back, in at most
        `max_tokens` tokens. `names` follow each other from a prefix's first block on."""
        if not self.can_resume:
            return 0  # a state exists only where its sequence stands; nothing to resume from
        num_known = self._num_known(names, min(len(names), max_tokens // self.layout.block_size))
        return num_known if self.windows is None else self.windows.resumable(names, num_known)

    def acquire(
        self,
        names: Sequence[BlockHash],
        *,
        num_tokens: int,
        max_cached_tokens: int,
        prompt_tokens: int | None = None,
    ) -> Holding | None:
        """Hold blocks for `num_tokens`: what is cached by reference, the rest fresh, as few
        runs as can be. None when there is no room now; then nothing changed.

        Layers with a window keep a snapshot at the end of `prompt_tokens` (None: of all tokens), and
        get their fresh blocks from `extend_window`, step by step.
        """
        if self.windows is not None and not self.windows.has_room:
            return None
        max_cached_tokens = min(max_cached_tokens, num_tokens)
        num_hits = self.match(names, max_tokens=max_cached_tokens)
        hits = self._prefix(names, num_hits)
        num_fresh = self.layout.blocks_for(num_tokens) - num_hits
        references = self._references[hits]
        num_revived = num_hits - int(np.count_nonzero(references))
        if num_fresh > self._num_free - num_revived:
            return None
        self._evictable.remove(num_revived)
        self._references[hits] = references + 1
        fresh = self._take(num_fresh, after=_last(hits))
        holding = Holding(
            blocks=np.concatenate([hits, fresh]), num_cached_blocks=num_hits, num_named=num_hits
        )
        if self.windows is not None:
            snapshot_at = num_tokens if prompt_tokens is None else prompt_tokens
            holding.window = self.windows.acquire(names, num_hits, prompt_tokens=snapshot_at)
            num_known = self._num_known(names, min(len(names), max_cached_tokens // self.layout.block_size))
            self.counters.replayed_blocks += num_known - num_hits
        return holding

    def has_room(self, names: Sequence[BlockHash], *, num_tokens: int, num_hits: int) -> bool:
        """Whether `acquire` would succeed now, where `match` gave `num_hits`."""
        if self.windows is not None and not self.windows.has_room:
            return False
        num_fresh = self.layout.blocks_for(num_tokens) - num_hits
        if num_fresh <= self._num_free - num_hits:
            return True  # whoever holds the hits
        num_held = int(np.count_nonzero(self._references[self._prefix(names, num_hits)]))
        return num_fresh <= self._num_free - (num_hits - num_held)

    def extend(self, holding: Holding, num_blocks: int) -> BlockIds | None:
        """Append fresh blocks and return them. None when there is no room now."""
        if num_blocks > self._num_free:
            return None
        fresh = self._take(num_blocks, after=_last(holding.blocks))
        holding.blocks = np.concatenate([holding.blocks, fresh])
        return fresh

    def extend_window(self, holding: Holding, end_token: int) -> BlockIds:
        """Append blocks of the layers with a window until they hold the tokens before `end_token`;
        the fresh ones."""
        if self.windows is None or holding.window is None:
            return block_ids([])
        missing = self.layout.blocks_for(end_token) - holding.window.end
        return self.windows.extend(holding.window, missing) if missing > 0 else block_ids([])

    def advance(self, holding: Holding, num_computed: int) -> None:
        """Tokens before `num_computed` are computed and, where they shall be shared, published: layers
        with a window let go of what is behind it. No step in flight may start earlier."""
        if self.windows is not None and holding.window is not None:
            self.windows.advance(holding.window, num_computed)

    def publish(self, holding: Holding, names: Sequence[BlockHash]) -> list[Replacement]:
        """The blocks after `holding.num_named` are computed and called `names`, in order.

        Where somebody published a name first, that block takes this one's place; the caller
        tells the executor and then calls `drop(old)` once nothing in flight reads it.
        """
        num_known = self._num_known(names, len(names))
        replacements = [self._replace(holding, name) for name in names[:num_known]]
        self._name(holding, names[num_known:])
        if self.windows is not None and holding.window is not None:
            self.windows.publish(holding.window, names)
        return replacements

    def release(self, holding: Holding) -> None:
        """Give a holding back. Last block first, so that leaves are evicted before roots."""
        blocks, num_named = holding.blocks, holding.num_named
        left = self._references[blocks] - 1
        if np.any(left < 0) or np.any(left[num_named:]):
            wrong = blocks[(left < 0) | ((left > 0) & (np.arange(len(blocks)) >= num_named))]
            raise InvariantBroken(f"block {wrong[0]} released more often than held")
        self._references[blocks] = left
        num_held = int(np.count_nonzero(left))  # by others: they hold prefixes, so the first ones
        self._evictable.add(blocks[num_held:num_named][::-1])
        self._empty.add(blocks[num_named:])
        holding.blocks, holding.num_named = block_ids([]), 0
        if self.windows is not None and holding.window is not None:
            self.windows.release(holding.window)
            holding.window = None

    def trim(self, holding: Holding) -> None:
        """Give back those of a holding's blocks that have no name."""
        own = holding.blocks[holding.num_named :]
        if np.any(self._references[own] != 1):
            raise InvariantBroken(f"a block without a name is held by others: one of {own.tolist()}")
        self._references[own] = 0
        self._empty.add(own)
        holding.blocks = holding.blocks[: holding.num_named]

    def drop(self, block: BlockId) -> None:
        """Give one reference back."""
        if self._references[block] <= 0:
            raise InvariantBroken(f"block {block} released more often than held")
        self._references[block] -= 1
        if self._references[block]:
            return
        if self._names[block] is None:
            self._empty.add(block_ids([block]))
        else:
            self._evictable.add(block_ids([block]))

    def clear(self) -> int:
        """Forget every cached block that nobody holds; returns how many."""
        num_cleared = len(self._evictable)
        self.evict(num_cleared, reason="cleared")
        if self.windows is not None:
            self.windows.clear()
        return num_cleared

    def occupancy(self) -> Occupancy:
        """Blocks by state, now."""
        cached, empty = len(self._evictable), len(self._empty)
        return Occupancy(
            total=self.num_blocks, held=self.num_blocks - cached - empty, cached=cached, empty=empty
        )

    def path(self, block: int) -> BlockIds:
        """The blocks of the prefix that ends with a named block, itself included; a copy."""
        return self._chains.path(BlockId(block))

    def names_of(self, blocks: BlockIds) -> list[BlockHash]:
        """Of named blocks."""
        return [*map(self._name_of, blocks.tolist())]

    @property
    def can_resume(self) -> bool:
        """Whether a sequence may begin behind blocks that another one computed."""
        return all(group.kind != "state" for group in self.layout.groups)

    # -- names ---------------------------------------------------------------------------------

    def _num_known(self, names: Sequence[BlockHash], limit: int) -> int:
        """How many of names[:limit] are known; the known ones come first. O(log limit)."""
        by_name = self._by_name
        return bisect_left(range(limit), True, key=lambda index: names[index] not in by_name)

    def _prefix(self, names: Sequence[BlockHash], length: int) -> BlockIds:
        if length == 0:
            return block_ids([])
        path = self._chains.path(self._by_name[names[length - 1]])
        if len(path) != length:
            raise InvariantBroken(f"name {length - 1} of a prefix belongs to its block {len(path) - 1}")
        return path

    def _replace(self, holding: Holding, name: BlockHash) -> Replacement:
        """The next block that a holding computed was published meanwhile: take that one."""
        index, new = holding.num_named, self._by_name[name]
        old = BlockId(int(holding.blocks[index]))
        self._evictable.remove(int(self._references[new] == 0))
        self._references[new] += 1
        holding.blocks[index] = new
        holding.num_named += 1
        self.counters.replaced_blocks += 1
        return Replacement(index=index, old=old, new=new)

    def _name(self, holding: Holding, names: Sequence[BlockHash]) -> None:
        start, end = holding.num_named, holding.num_named + len(names)
        blocks = holding.blocks[start:end]
        self._chains.append(_last(holding.blocks[:start]), blocks)
        for name, block in zip(names, blocks.tolist(), strict=True):
            self._by_name[name] = block
            self._names[block] = name
        holding.num_named = end

    @property
    def _num_free(self) -> int:
        """Blocks that can be taken, what is cached in them evicted."""
        return len(self._empty) + len(self._evictable)

    # -- states --------------------------------------------------------------------------------

    def _take(self, count: int, *, after: BlockId | None) -> BlockIds:
        self.evict(max(0, count - len(self._empty)))
        fresh = self._empty.take(count, after=after)
        self._references[fresh] = 1
        return fresh

    # -- as the index of another tier ----------------------------------------------------------

    def acquire_after(
        self, after: BlockHash | None, names: Sequence[BlockHash]
    ) -> tuple[Holding, int] | None:
        """Hold what is known: all up to `after` (None: nothing stands before), and the leading ones
        of `names` that are known; how many. None: `after` is not known, so none of them is."""
        if after is not None and after not in self._by_name:
            return None
        num_known = self._num_known(names, len(names))
        last = names[num_known - 1] if num_known else after
        blocks = block_ids([]) if last is None else self._chains.path(self._by_name[last])
        before = _last(blocks[: len(blocks) - num_known])
        if before != (None if after is None else self._by_name[after]):
            raise InvariantBroken("the names do not follow the one that they are said to follow")
        references = self._references[blocks]
        self._evictable.remove(len(blocks) - int(np.count_nonzero(references)))
        self._references[blocks] = references + 1
        return Holding(blocks=blocks, num_cached_blocks=len(blocks), num_named=len(blocks)), num_known

    def evict(self, count: int, *, reason: EvictionReason = "room") -> list[BlockHash]:
        """Empty the first `count` cached blocks, there being that many; the names they had."""
        if not count:
            return []
        blocks = self._evictable.pop(count)
        names = self.names_of(blocks)
        if self.on_evict is not None:
            self.on_evict(blocks, names, reason)
        self._unname(blocks, names)
        self._empty.add(blocks)
        self.counters.evicted_blocks += count
        return names

    def forget(self, names: Sequence[BlockHash]) -> tuple[BlockIds, list[BlockHash]]:
        """Take the names off blocks that are not to be found any more, and off all that follow them.

        Cached ones are empty then. Held ones stay held: whoever holds them takes them out of the
        holding and calls `drop`. Returns all of them, and the names they had.
        """
        known = block_ids([self._by_name[name] for name in names if name in self._by_name])
        blocks = self._chains.following(known)
        cached = blocks[self._references[blocks] == 0]
        self._evictable.discard(blocks)
        forgotten = self.names_of(blocks)
        self._unname(blocks, forgotten)
        self._empty.add(cached)
        return blocks, forgotten

    def runs(self) -> Iterator[tuple[BlockHash | None, list[BlockHash]]]:
        """All names, in runs that follow each other, each after the name that it follows."""
        for parent, blocks in self._chains.runs():
            yield (None if parent is None else self._name_of(parent)), [*map(self._name_of, blocks.tolist())]

    def _unname(self, blocks: BlockIds, names: Sequence[BlockHash]) -> None:
        for name, block in zip(names, blocks.tolist(), strict=True):
            del self._by_name[name]
            self._names[block] = None
        self._chains.remove(blocks)

    def _name_of(self, block: int) -> BlockHash:
        name = self._names[block]
        if name is None:
            raise InvariantBroken(f"block {block} should have a name and has none")
        return name

    # -- looking in ----------------------------------------------------------------------------

    def check(self, held_references: Sequence[BlockId] | BlockIds) -> None:
        """Raise `InvariantBroken` unless states, names and references agree.

        `held_references` lists every reference the caller still has, one entry each. O(blocks).
        """
        references = self._references
        expected = np.bincount(block_ids(held_references), minlength=self.num_blocks)
        for block in np.flatnonzero(references != expected):
            raise InvariantBroken(f"block {block}: {references[block]} references, {expected[block]} holders")
        cached, empty, named = self._evictable.mask(), self._empty.mask(self.num_blocks), self._chains.mask()
        states = cached.astype(np.int64) + empty + (references > 0)
        _refuse(states != 1, "is not in exactly one of the states held, cached, empty")
        _refuse(cached & ~named, "is cached without a name")
        _refuse(empty & named, "is empty but named")
        if np.count_nonzero(cached) != len(self._evictable):
            raise InvariantBroken("the eviction queue miscounts")
        self._check_names(named)
        self._chains.check()

    def _check_names(self, named: npt.NDArray[np.bool_]) -> None:
        blocks = np.fromiter(self._by_name.values(), dtype=np.int64, count=len(self._by_name))
        found = np.bincount(blocks, minlength=self.num_blocks)
        _refuse(found != named, "is not found by its name")
        theirs = map(self._names.__getitem__, self._by_name.values())
        for name in compress(self._by_name, map(is_not, self._by_name, theirs)):
            raise InvariantBroken(
                f"name {name.hex()} points at block {self._by_name[name]}, which has another"
            )


def _last(blocks: BlockIds) -> BlockId | None:
    return BlockId(int(blocks[-1])) if len(blocks) else None


def _refuse(wrong: npt.NDArray[np.bool_], what: str) -> None:
    for block in np.flatnonzero(wrong):
        raise InvariantBroken(f"block {block} {what}")
