"""Whatever happens, in whatever order: each turn has one rank, and what is believed of ranks is so."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from keepwarm.core.ids import BlockHash, RequestId
from keepwarm.core.rank_messages import Admitted, Ended, Submit, Tokens
from keepwarm.core.session import SessionKey
from keepwarm.sched.router import Router, RouterSettings
from tests.sched.test_router import BLOCK_SIZE, evicted, names, stored, turn

NUM_RANKS = 3
NUM_BLOCKS = 40
SETTINGS = RouterSettings(tie_tokens=2 * BLOCK_SIZE, hot_turns=2, hot_tokens=300, max_sessions=4)


class _World:
    """Ranks whose blocks and work are known for certain, beside the router that is told of them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.router = Router(NUM_RANKS, SETTINGS)
        self.chains: dict[int, dict[str, int]] = {}
        """Of ranks that serve: how many leading blocks of each conversation they hold."""
        self.open: dict[str, tuple[int, Submit]] = {}
        self.num_turns = 0

    def do_anything(self) -> None:
        step = self.rng.choice(
            [self.serve, self.lose, self.ask, self.ask, self.ask, self.admit, self.read, self.end, self.evict]
        )
        step()
        self.router.check()

    def serve(self) -> None:
        rank = self.rng.randrange(NUM_RANKS)
        if rank not in self.chains:
            self.router.rank_serves(rank, block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS)
            self.chains[rank] = {}

    def lose(self) -> None:
        if self.rng.random() < 0.3:
            rank = self.rng.randrange(NUM_RANKS)
            self.router.forget(rank)
            self.chains.pop(rank, None)
            self.open = {name: entry for name, entry in self.open.items() if entry[0] != rank}

    def ask(self) -> None:
        self.num_turns += 1
        conversation = self.rng.choice("abc")
        submit = turn(f"t{self.num_turns}", names(conversation, 0, self.rng.randint(0, 12)))
        for rank in self.chains:
            assert self.router.uncached_tokens(submit, rank) == self._uncached(submit, conversation, rank)
        agent = self.rng.choice(["", "", "x"])
        session = SessionKey(session=self.rng.choice(["", conversation, "other"]), agent=agent)
        chosen = self.router.route(submit, session)
        if not self.chains:
            assert chosen is None
            return
        assert chosen in self.chains
        self.open[submit.request_id] = (chosen, submit)
        self._grow(conversation, chosen, len(submit.block_hashes) // 16)

    def admit(self) -> None:
        if self.open:
            name = self.rng.choice(list(self.open))
            self.router.hear(Admitted(request_id=RequestId(name), cached_tokens=0))

    def read(self) -> None:
        if self.open:
            self.router.hear(Tokens(request_id=RequestId(self.rng.choice(list(self.open))), tokens=(1,)))

    def end(self) -> None:
        if self.open:
            name = self.rng.choice(list(self.open))
            del self.open[name]
            self.router.hear(Ended(request_id=RequestId(name), reason="stop"))
            self.router.hear(Ended(request_id=RequestId(name), reason="stop"))

    def evict(self) -> None:
        """Leaves first, as ranks do."""
        for rank, chains in self.chains.items():
            for conversation, length in list(chains.items()):
                left = self.rng.randint(0, length)
                self.router.take(rank, [evicted(names(conversation, left, length))])
                chains[conversation] = left

    def _grow(self, conversation: str, rank: int, length: int) -> None:
        known = self.chains[rank].get(conversation, 0)
        if length > known:
            self.router.take(rank, [stored(names(conversation, known, length))])
            self.chains[rank][conversation] = length

    def _uncached(self, submit: Submit, conversation: str, rank: int) -> int:
        num_blocks = min(self.chains[rank].get(conversation, 0), len(submit.block_hashes) // 16)
        return len(submit.tokens) // 4 - num_blocks * BLOCK_SIZE


@given(seed=st.integers(0, 2**32), num_steps=st.integers(1, 120))
@settings(max_examples=150, deadline=None)
def test_sums_and_beliefs_hold_after_any_order_of_events(seed: int, num_steps: int) -> None:
    world = _World(seed)
    for _ in range(num_steps):
        world.do_anything()
    for name in list(world.open):
        world.router.hear(Ended(request_id=RequestId(name), reason="stop"))
    world.router.check()
    assert world.router.num_open == 0


@given(
    held=st.lists(st.integers(0, 30), min_size=2, max_size=5),
    waiting=st.lists(st.integers(0, 15), min_size=5, max_size=5),
    num_blocks=st.integers(0, 30),
)
def test_a_turn_of_no_session_goes_to_a_cheapest_rank(
    held: list[int], waiting: list[int], num_blocks: int
) -> None:
    router = Router(len(held), RouterSettings(tie_tokens=0, hot_turns=1_000))
    for rank in range(len(held)):
        router.rank_serves(rank, block_size=BLOCK_SIZE, num_blocks=1_000)
    pending = dict.fromkeys(range(len(held)), 0)
    for number, blocks in enumerate(waiting):
        wait = turn(f"w{number}", names(f"w{number}x", 0, blocks))
        waits_at = router.route(wait)
        assert waits_at is not None
        pending[waits_at] += blocks * BLOCK_SIZE + 8
    for rank, length in enumerate(held):
        router.take(rank, [stored(names("a", 0, length))])
    asked = turn("asked", names("a", 0, num_blocks))
    costs = {rank: pending[rank] + router.uncached_tokens(asked, rank) for rank in pending}
    chosen = router.route(asked)
    assert chosen is not None
    assert costs[chosen] <= min(costs.values()) + BLOCK_SIZE


@given(known=st.integers(0, 60), limit=st.integers(0, 60))
def test_what_is_known_of_a_chain_is_found_as_by_looking_at_every_name(known: int, limit: int) -> None:
    router = Router(1)
    router.rank_serves(0, block_size=BLOCK_SIZE, num_blocks=1_000)
    told = names("a", 0, known)
    router.take(0, [stored(told)])
    chain: list[BlockHash] = names("a", 0, limit)
    num_known = sum(1 for name in chain if name in set(told))
    assert router.uncached_tokens(turn("t", chain), 0) == (limit - num_known) * BLOCK_SIZE + 8
