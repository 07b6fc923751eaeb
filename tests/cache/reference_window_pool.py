"""The window pool in the plainest words: blocks are objects, what is cached is two lists, and whether
a prefix can be gone on with is looked up block by block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from keepwarm.cache.window_pool import SNAPSHOT_EVERY_WINDOWS
from keepwarm.core.ids import BlockHash


@dataclass(eq=False)
class Block:
    name: BlockHash | None = None
    num_holders: int = 1


@dataclass
class ReferenceHolding:
    held: dict[int, Block]
    num_published: int
    prompt_blocks: int


@dataclass
class ReferenceWindowPool:
    block_size: int
    window_tokens: int
    num_blocks: int
    named: dict[BlockHash, Block] = field(default_factory=dict)
    passed: list[Block] = field(default_factory=list)
    kept: list[Block] = field(default_factory=list)
    num_empty: int = 0

    def __post_init__(self) -> None:
        self.num_empty = self.num_blocks

    def is_resumable(self, names: Sequence[BlockHash], end: int) -> bool:
        """The first token of block `end` reads the tokens before it, `window_tokens` with itself."""
        next_token = end * self.block_size
        read = range(max(0, next_token - self.window_tokens + 1), next_token)
        return all(names[token // self.block_size] in self.named for token in read)

    def resumable(self, names: Sequence[BlockHash], most: int) -> int:
        return max(end for end in range(most + 1) if self.is_resumable(names, end))

    def window_before(self, end: int) -> range:
        next_token = end * self.block_size
        return range(max(0, next_token - self.window_tokens + 1) // self.block_size, end)

    def acquire(self, names: Sequence[BlockHash], num_hits: int, prompt_tokens: int) -> ReferenceHolding:
        held = {index: self.named[names[index]] for index in self.window_before(num_hits)}
        for block in held.values():
            block.num_holders += 1
            for queue in (self.passed, self.kept):
                if block in queue:
                    queue.remove(block)
        return ReferenceHolding(held, num_hits, prompt_tokens // self.block_size)

    def extend(self, holding: ReferenceHolding, first: int, count: int) -> None:
        while self.num_empty < count:
            self._forget((self.passed or self.kept)[0])
        self.num_empty -= count
        holding.held |= {index: Block() for index in range(first, first + count)}

    def publish(self, holding: ReferenceHolding, names: Sequence[BlockHash]) -> None:
        for name in names:
            if name in self.named:
                self._forget(self.named[name])
            block = holding.held[holding.num_published]
            block.name = name
            self.named[name] = block
            holding.num_published += 1

    def advance(self, holding: ReferenceHolding, next_token: int) -> None:
        needed = self.window_before(next_token // self.block_size).start
        for index in sorted(holding.held):
            if index < needed - 1:
                self._let_go(holding.held.pop(index), self._in_a_snapshot(holding, index))

    def release(self, holding: ReferenceHolding) -> None:
        last = {
            *self.window_before(holding.num_published),
            self.window_before(holding.num_published).start - 1,
        }
        for index in sorted(holding.held):
            in_snapshot = self._in_a_snapshot(holding, index) or index in last
            self._let_go(holding.held.pop(index), in_snapshot or index >= holding.num_published)

    def clear(self) -> None:
        while self.passed or self.kept:
            self._forget((self.passed or self.kept)[0])

    def _in_a_snapshot(self, holding: ReferenceHolding, index: int) -> bool:
        num_window = len(self.window_before(1_000_000))
        every = SNAPSHOT_EVERY_WINDOWS * max(1, num_window)
        prompt = self.window_before(holding.prompt_blocks)
        regular = self.window_before((index // every + 1) * every)
        return index in regular or index in prompt or (index == prompt.start - 1 and index >= 0)

    def _let_go(self, block: Block, in_snapshot: bool) -> None:
        block.num_holders -= 1
        if block.num_holders:
            return
        if block.name is None:
            self.num_empty += 1
        else:
            (self.kept if in_snapshot else self.passed).append(block)

    def _forget(self, block: Block) -> None:
        assert block.name is not None
        del self.named[block.name]
        block.name = None
        if not block.num_holders:
            (self.passed if block in self.passed else self.kept).remove(block)
            self.num_empty += 1
