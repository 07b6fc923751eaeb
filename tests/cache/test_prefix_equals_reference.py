"""After any history the cache has done what its block-by-block model did: the same hits, the same
blocks, the same evictions in the same order."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from keepwarm.cache import chains
from keepwarm.cache.prefix import Holding
from keepwarm.core.ids import BlockHash
from tests.cache.reference_cache import ReferenceCache, ReferenceHolding
from tests.cache.test_prefix import SIZE, make_cache, names_of

Open = tuple[Holding, ReferenceHolding, list[BlockHash]]

paths = st.text("ab", min_size=1, max_size=9)


class BothCaches(RuleBasedStateMachine):
    """Each operation is done to both."""

    @initialize(num_blocks=st.integers(4, 40), max_slices=st.sampled_from([2, 3, 32]))
    def start(self, num_blocks: int, max_slices: int) -> None:
        self.cache = make_cache(num_blocks)
        self.model = ReferenceCache(block_size=SIZE, num_blocks=num_blocks)
        self.open: list[Open] = []
        self.limit = patch.object(chains, "_MAX_SLICES", max_slices)
        self.limit.start()

    def teardown(self) -> None:
        if hasattr(self, "limit"):
            self.limit.stop()

    @rule(path=paths, more=st.integers(0, 3), most_cached=st.integers(0, 10))
    def acquire(self, path: str, more: int, most_cached: int) -> None:
        names, tokens = names_of(path), (len(path) + more) * SIZE
        num_hits = self.cache.match(names, max_tokens=min(most_cached * SIZE, tokens))
        has_room = self.cache.has_room(names, num_tokens=tokens, num_hits=num_hits)
        ours = self.cache.acquire(names, num_tokens=tokens, max_cached_tokens=most_cached * SIZE)
        theirs = self.model.acquire(names, tokens, most_cached * SIZE)
        assert (ours is None) == (theirs is None) == (not has_room)
        if ours is not None and theirs is not None:
            self.open.append((ours, theirs, names))

    @rule(path=paths)
    def whole_turn(self, path: str) -> None:
        """The usual one: held, computed, published and released at once."""
        self.acquire(path, 1, len(path))
        if self.open and self.open[-1][2] == names_of(path):
            self.publish(-1, len(path))
            self.release(-1)

    @precondition(lambda self: self.open)
    @rule(index=st.integers(0, 99), count=st.integers(1, 9))
    def publish(self, index: int, count: int) -> None:
        ours, theirs, names = self.open[index % len(self.open)]
        new = names[ours.num_named :][:count]
        replacements = self.cache.publish(ours, new)
        assert [(r.index, r.old, r.new) for r in replacements] == self.model.publish(theirs, new)
        for replacement in replacements:
            self.cache.drop(replacement.old)
            self.model.drop(replacement.old)

    @precondition(lambda self: self.open)
    @rule(index=st.integers(0, 99), count=st.integers(0, 3))
    def extend(self, index: int, count: int) -> None:
        ours, theirs, _names = self.open[index % len(self.open)]
        assert (self.cache.extend(ours, count) is not None) == self.model.extend(theirs, count)

    @precondition(lambda self: self.open)
    @rule(index=st.integers(0, 99))
    def release(self, index: int) -> None:
        ours, theirs, _names = self.open.pop(index % len(self.open))
        self.cache.release(ours)
        self.model.release(theirs)

    @rule()
    def clear(self) -> None:
        num_cached = len(self.model.lru)
        self.model.clear()
        assert self.cache.clear() == num_cached

    @rule(path=paths, max_tokens=st.integers(0, 40))
    def match(self, path: str, max_tokens: int) -> None:
        names = names_of(path)
        assert self.cache.match(names, max_tokens=max_tokens) == self.model.match(names, max_tokens)

    @invariant()
    def both_say_the_same(self) -> None:
        assert self.cache._by_name == self.model.by_name
        assert self.cache._references.tolist() == self.model.references
        assert self.cache._empty.mask(self.model.num_blocks).sum() == len(self.model.empty)
        assert self.cache._evictable.mask().nonzero()[0].tolist() == sorted(self.model.lru)
        assert self.cache.counters.evicted_blocks == len(self.model.evicted)
        for ours, theirs, _names in self.open:
            assert ours.blocks.tolist() == theirs.blocks
            assert ours.num_named == theirs.num_named

    @invariant()
    def a_named_block_says_which_ones_stand_before_it(self) -> None:
        by_name = self.model.by_name
        for name, block in self.cache._by_name.items():
            before = [by_name[prefix] for prefix in names_of(name.decode())]
            assert self.cache._chains.path(block).tolist() == before

    @invariant()
    def the_check_agrees(self) -> None:
        self.cache.check([block for ours, _theirs, _names in self.open for block in ours.blocks])


TestBothCaches = BothCaches.TestCase
TestBothCaches.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
