"""The blocks of layers with a sliding window: what a sequence may still read, and snapshots of it.

Such a layer reads only the last `window_tokens` tokens, so a sequence holds the blocks that reach
into the window of its last full block, and passes the others as it moves on:

    index   0 ┄┄┄┄┄┄┄┄┄┄┄┄ first ───────────────────── next token ──────── end
                 passed      └ held: its window, and a block ┘ └ held: to be computed

A block nobody holds any more stays readable under its name until its room is needed, in one of two
orders: *kept* blocks are those of a snapshot, the others are *passed* ones, and they go first.
Snapshots are the `window_blocks` before a place where somebody is likely to go on: the end of a
prompt, the end of a turn, and every `snapshot_every` blocks, whatever stands there. At the ends it
is one block more, so that a turn may also go on one block earlier.

A prefix can be gone on with after n blocks where all of the n-th block's window is there. Where it is
not, the sequence goes on further left, and computes again what lies between: fewer than
`snapshot_every` blocks, as long as no snapshot was evicted.

A name belongs to the block that was computed last: a holding keeps its own block, and an older one
loses its name. So no table ever changes behind a sequence. Knows no layers but these; `prefix` puts
them beside the others.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from keepwarm.cache.runs import EmptyRuns
from keepwarm.core.errors import InvariantBroken
from keepwarm.core.ids import BlockHash, BlockId, BlockIds, block_ids
from keepwarm.core.layout import window_blocks

SNAPSHOT_EVERY_WINDOWS: Final = 16
"""A snapshot costs a window: one in 16 is a sixteenth of what keeping every token would cost."""


@dataclass(slots=True, kw_only=True)
class WindowHolding:
    """One sequence's blocks [first, end) of the window layers; changed only by its `WindowPool`."""

    first: int
    blocks: list[int] = field(default_factory=list)
    num_published: int
    """Blocks [first, num_published) were named, by this sequence or before it."""
    prompt_blocks: int
    """Full blocks of the prompt: where its snapshot ends."""

    @property
    def end(self) -> int:
        return self.first + len(self.blocks)


@dataclass(slots=True)
class WindowPool:
    """The sole owner of the window layers' block states. Not thread-safe."""

    block_size: int
    window_tokens: int
    num_blocks: int
    max_holdings: int
    """So many sequences never lack a block."""
    num_holdings: int = field(init=False, default=0)
    evicted_blocks: int = 0
    """Named blocks whose room was needed, since start."""
    _references: list[int] = field(init=False)
    _names: list[BlockHash | None] = field(init=False)
    """A block's name; the inverse of `_by_name`."""
    _by_name: dict[BlockHash, int] = field(init=False, default_factory=dict)
    _passed: OrderedDict[int, None] = field(init=False, default_factory=OrderedDict)
    _kept: OrderedDict[int, None] = field(init=False, default_factory=OrderedDict)
    _empty: EmptyRuns = field(init=False)

    def __post_init__(self) -> None:
        self._references = [0] * self.num_blocks
        self._names = [None] * self.num_blocks
        self._empty = EmptyRuns(self.num_blocks)

    @property
    def window_blocks(self) -> int:
        """Blocks that a sequence must have to go on after a full block."""
        return window_blocks(self.window_tokens, self.block_size)

    @property
    def snapshot_every(self) -> int:
        """Blocks from one snapshot to the next: the most that is ever computed again."""
        return SNAPSHOT_EVERY_WINDOWS * max(1, self.window_blocks)

    @property
    def num_cached(self) -> int:
        """Named blocks that nobody holds."""
        return len(self._passed) + len(self._kept)

    @property
    def num_empty(self) -> int:
        return len(self._empty)

    def resumable(self, names: Sequence[BlockHash], most: int) -> int:
        """The largest n <= `most` such that a sequence can go on after names[:n].

        Looks at the left end of the window first: a gap there rules out a whole window at once.
        """
        end = most
        while end:
            start = max(0, end - self.window_blocks)
            gap = next((at for at in range(start, end) if names[at] not in self._by_name), None)
            if gap is None:
                break
            end = gap
        return end

    @property
    def has_room(self) -> bool:
        """Another sequence may be held."""
        return self.num_holdings < self.max_holdings

    def acquire(self, names: Sequence[BlockHash], num_hits: int, *, prompt_tokens: int) -> WindowHolding:
        """Hold the window before block `num_hits`, which is `resumable`."""
        first = max(0, num_hits - self.window_blocks)
        blocks = [self._by_name[name] for name in names[first:num_hits]]
        for block in blocks:
            if not self._references[block]:
                self._unqueue(block)
            self._references[block] += 1
        self.num_holdings += 1
        return WindowHolding(
            first=first,
            blocks=blocks,
            num_published=num_hits,
            prompt_blocks=prompt_tokens // self.block_size,
        )

    def extend(self, holding: WindowHolding, num_blocks: int) -> BlockIds:
        """Append fresh blocks and return them. Raises `InvariantBroken` where there are none: sequences
        were held beyond `max_holdings`, or longer steps planned than that counted on."""
        if num_blocks > len(self._empty) + self.num_cached:
            raise InvariantBroken(
                f"{num_blocks} window blocks wanted of {self.num_blocks}, with {self.num_holdings} "
                f"sequences of at most {self.max_holdings}"
            )
        self._evict(num_blocks - len(self._empty))
        after = BlockId(holding.blocks[-1]) if holding.blocks else None
        fresh = self._empty.take(num_blocks, after=after)
        for block in fresh.tolist():
            self._references[block] = 1
        holding.blocks += fresh.tolist()
        return fresh

    def publish(self, holding: WindowHolding, names: Sequence[BlockHash]) -> None:
        """The blocks after `holding.num_published` are computed and called `names`, in order."""
        offset = holding.num_published - holding.first
        for name, block in zip(names, holding.blocks[offset : offset + len(names)], strict=True):
            older = self._by_name.get(name)
            if older is not None:
                self._forget(older)
            self._by_name[name] = block
            self._names[block] = name
        holding.num_published += len(names)

    def advance(self, holding: WindowHolding, next_token: int) -> None:
        """Tokens before `next_token` are computed: pass the blocks that no later one reads, but for
        the one more that a turn's end keeps."""
        num_passed = next_token // self.block_size - self.window_blocks - 1 - holding.first
        if num_passed <= 0:
            return
        passed, holding.blocks = holding.blocks[:num_passed], holding.blocks[num_passed:]
        for index, block in enumerate(passed, start=holding.first):
            self._let_go(block, keep=self._is_kept(holding, index))
        holding.first += len(passed)

    def release(self, holding: WindowHolding) -> None:
        """Give a holding back; the window before its last named block is its snapshot."""
        snapshot = holding.num_published - self.window_blocks - 1
        for index, block in enumerate(holding.blocks, start=holding.first):
            self._let_go(block, keep=index >= snapshot or self._is_kept(holding, index))
        holding.blocks = []
        self.num_holdings -= 1

    def clear(self) -> int:
        """Forget every named block that nobody holds; returns how many."""
        num_cleared = self.num_cached
        self._evict(num_cleared)
        return num_cleared

    # -- states --------------------------------------------------------------------------------

    def _is_kept(self, holding: WindowHolding, index: int) -> bool:
        """Whether block `index` belongs to the snapshot at the prompt's end or to one of the regular ones."""
        before_end = holding.prompt_blocks - index
        if 0 < before_end <= self.window_blocks + 1:
            return True
        return index % self.snapshot_every >= self.snapshot_every - self.window_blocks

    def _let_go(self, block: int, *, keep: bool) -> None:
        if self._references[block] <= 0:
            raise InvariantBroken(f"window block {block} released more often than held")
        self._references[block] -= 1
        if self._references[block]:
            return
        if self._names[block] is None:
            self._empty.add(block_ids([block]))
        else:
            (self._kept if keep else self._passed)[block] = None

    def _unqueue(self, block: int) -> None:
        del (self._kept if block in self._kept else self._passed)[block]

    def _forget(self, block: int) -> None:
        """A block loses its name; where nobody holds it, it is empty."""
        name = self._names[block]
        if name is None:
            raise InvariantBroken(f"window block {block} is to lose its name and has none")
        del self._by_name[name]
        self._names[block] = None
        if not self._references[block]:
            self._unqueue(block)
            self._empty.add(block_ids([block]))

    def _evict(self, count: int) -> None:
        for _ in range(count):
            self._forget(next(iter(self._passed or self._kept)))
            self.evicted_blocks += 1

    # -- looking in ----------------------------------------------------------------------------

    def check(self, holdings: Iterable[WindowHolding]) -> None:
        """Raise `InvariantBroken` unless states, names and references agree. `holdings` are all of them."""
        held = Counter(block for holding in holdings for block in holding.blocks)
        empty = self._empty.mask(self.num_blocks)
        for block, references in enumerate(self._references):
            if references != held[block]:
                raise InvariantBroken(f"window block {block}: {references} references, {held[block]} holders")
            states = (references > 0) + (block in self._passed) + (block in self._kept) + bool(empty[block])
            if states != 1:
                raise InvariantBroken(f"window block {block} is not in exactly one state")
            name = self._names[block]
            if name is None and not references and not empty[block]:
                raise InvariantBroken(f"window block {block} is cached without a name")
            if name is not None and (empty[block] or self._by_name.get(name) != block):
                raise InvariantBroken(f"window block {block} is not found by its name")
        if len(self._by_name) != sum(name is not None for name in self._names):
            raise InvariantBroken("names of window blocks that no block has")
