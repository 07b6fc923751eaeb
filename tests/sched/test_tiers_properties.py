"""Random turns, aborts, deaths of ranks, evictions, promotions, wrong checksums and losses of host memory,
in virtual time, over two ranks and one L1: nothing is lost, nothing is said twice, answers are right.

The executor re-reads each sequence's whole prefix at every step, and refuses plans that touch what is
being copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from random import Random

import numpy as np
import pytest

from keepwarm.core.hashing import HASH_BYTES
from keepwarm.core.ids import BlockHash, RequestId
from keepwarm.core.rank_messages import CacheEvent
from keepwarm.sched.settings import Demote
from tests.sched.driver import Rank, expected_output, make_limits, make_submit
from tests.sched.tiers import Host, tier_of

NUM_SCHEDULES = 500
SCHEDULES_A_CASE = 50
MAX_MODEL_LEN = 76
STEMS = (
    tuple(range(1, 22)),
    (*range(1, 13), *range(20, 31)),
    (30, 29, 28),
)


@cache
def answer_to(prompt: tuple[int, ...], max_output_tokens: int) -> tuple[int, ...]:
    """What a cold executor says."""
    submit = make_submit("lonely", prompt, max_output_tokens=max_output_tokens)
    return tuple(expected_output(make_limits(max_model_len=MAX_MODEL_LEN), submit))


@dataclass(kw_only=True)
class Shape:
    """What a schedule runs on."""

    num_blocks: int
    num_slots: int
    demote: Demote
    depth: int
    copy_steps: int
    chunk_blocks: int
    budget: int
    reserve: int
    block_copy_s: float


@dataclass(kw_only=True)
class Asked:
    prompt: tuple[int, ...]
    max_output_tokens: int
    rank: Rank
    is_disturbed: bool = False
    """Its client went away, or cut it."""


@dataclass
class World:
    """Two ranks, their L1, and everybody who asked them something."""

    shape: Shape
    host: Host = field(init=False)
    ranks: list[Rank] = field(init=False)
    asked: dict[str, Asked] = field(default_factory=dict)
    num_asked: int = 0
    ever_in_host: set[BlockHash] = field(default_factory=set)
    was_dropped: bool = False
    """A reservation that lost its parent stays empty, and its writer is not told."""

    def __post_init__(self) -> None:
        shape = self.shape
        limits = make_limits(num_blocks=shape.num_blocks, max_num_seqs=3, max_model_len=MAX_MODEL_LEN)
        self.host = Host(num_slots=shape.num_slots, limits=limits)
        self.ranks = [self.new_rank(), self.new_rank()]

    def new_rank(self) -> Rank:
        shape = self.shape
        rank = self.host.rank(
            demote=shape.demote,
            budget=shape.budget,
            reserve=shape.reserve,
            depth=shape.depth,
            copy_steps=shape.copy_steps,
            chunk_blocks=shape.chunk_blocks,
        )
        rank.executor.token_s = 1.0
        rank.executor._copies.block_s = shape.block_copy_s
        return rank

    def ask(self, prompt: tuple[int, ...], max_output_tokens: int, where: int, use_cache: bool) -> None:
        name = f"r{self.num_asked}"
        self.num_asked += 1
        rank = self.ranks[where]
        self.asked[name] = Asked(prompt=prompt, max_output_tokens=max_output_tokens, rank=rank)
        rank.submit(name, prompt, max_output_tokens=max_output_tokens, use_cache=use_cache)

    def go_on(self, index: int, where: int, more: Sequence[int]) -> None:
        """The next turn of a conversation, whether or not the last one is over."""
        if self.asked:
            latest = list(self.asked.values())[-6:]
            before = latest[index % len(latest)]
            prompt = (*before.prompt, *answer_to(before.prompt, before.max_output_tokens), *more)
            self.ask(prompt[: MAX_MODEL_LEN - 8], 6, where, True)

    def disturb(self, index: int, kind: str) -> None:
        if not self.asked:
            return
        latest = list(self.asked)[-4:]
        name = latest[index % len(latest)]
        asked = self.asked[name]
        asked.is_disturbed = True
        if kind == "abort":
            asked.rank.scheduler.abort(RequestId(name))
        else:
            asked.rank.scheduler.cut(RequestId(name), 1)

    def kill(self, where: int) -> None:
        """A rank dies with all its turns; what it left in L1 is there for its successor."""
        tier = tier_of(self.ranks[where])
        self.host.index.release_owner(tier.owner)
        for name, asked in list(self.asked.items()):
            if asked.rank is self.ranks[where]:
                self.check_answer(name, asked)
                del self.asked[name]
        self.ranks[where] = self.new_rank()

    def drop(self, index: int) -> None:
        """Somebody found one block of L1 to be wrong."""
        names = sorted(name for event in self.host.index.contents() for name in names_in(event))
        if names:
            self.was_dropped = True
            self.host.index.drop([names[index % len(names)]])

    def check(self) -> None:
        for rank in self.ranks:
            rank.scheduler.check_integrity()
        self.host.index.check()
        for event in self.host.index.take_events():
            if event.kind == "stored":
                self.ever_in_host |= names_in(event)
        for rank in [] if self.was_dropped else self.ranks:
            clean = np.flatnonzero(rank.scheduler._tiers.demotions.clean.mask())
            assert self.ever_in_host.issuperset(rank.scheduler.cache.names_of(clean))

    def finish(self) -> None:
        for rank in self.ranks:
            rank.run()
            occupancy = rank.scheduler.cache.occupancy()
            assert occupancy.held == 0
            assert occupancy.cached + occupancy.empty == self.shape.num_blocks
        self.host.check_at_rest()
        for name, asked in self.asked.items():
            assert len(asked.rank.ends[name]) == 1
            self.check_answer(name, asked)
            if not asked.is_disturbed:
                assert asked.rank.ends[name] == ["length"]
                assert len(asked.rank.output[name]) == asked.max_output_tokens

    def check_answer(self, name: str, asked: Asked) -> None:
        output = tuple(asked.rank.output.get(name, ()))
        assert output == answer_to(asked.prompt, asked.max_output_tokens)[: len(output)]


def names_in(event: CacheEvent) -> set[BlockHash]:
    return {BlockHash(event.names[at : at + HASH_BYTES]) for at in range(0, len(event.names), HASH_BYTES)}


def random_shape(random: Random) -> Shape:
    return Shape(
        num_blocks=random.choice([20, 23, 28, 40]),
        num_slots=random.choice([3, 24, 60, 200]),
        demote=random.choice(["turn_end", "turn_end", "eviction"]),
        depth=random.choice([1, 2]),
        copy_steps=random.choice([0, 2, 5, 10]),
        chunk_blocks=random.choice([1, 3, 100]),
        budget=random.choice([3, 7, 64]),
        reserve=random.choice([0, 3, 16]),
        block_copy_s=random.choice([0.0, 0.5, 4.0, 50.0]),
    )


def random_operation(random: Random) -> tuple[object, ...]:
    kind = random.choices([*WEIGHTS], [*WEIGHTS.values()])[0]
    where = random.randrange(2)
    match kind:
        case "ask":
            more = [random.randrange(4) for _ in range(random.randrange(20))]
            use_cache = random.random() < 0.9
            return kind, random.choice(STEMS), more, random.randint(1, 12), where, use_cache
        case "go on":
            return (
                kind,
                random.randrange(20),
                where,
                [random.randrange(6) for _ in range(random.randrange(9))],
            )
        case "step" | "wait":
            return kind, where, random.randint(1, 8)
        case "abort" | "cut" | "drop":
            return kind, random.randrange(100)
        case _:
            return kind, where


WEIGHTS = {
    "ask": 25,
    "go on": 40,
    "step": 70,
    "rest": 15,
    "abort": 14,
    "cut": 4,
    "kill": 8,
    "corrupt": 1,
    "lose": 1,
    "clear": 5,
    "wait": 4,
    "drop": 2,
}
"""How often each operation comes."""


def do(world: World, operation: tuple[object, ...]) -> None:
    match operation:
        case ("ask", tuple(stem), list(more), int(max_output), int(where), bool(use_cache)):
            world.ask((*stem, *more), max_output, where, use_cache)
        case ("go on", int(index), int(where), list(more)):
            world.go_on(index, where, more)
        case ("step", int(where), int(count)):
            for _ in range(count):
                world.ranks[where].step()
                world.check()
        case ("rest", int(where)):
            world.ranks[where].run()
        case ("abort" | "cut" as kind, int(index)):
            world.disturb(index, kind)
        case ("kill", int(where)):
            world.kill(where)
        case ("corrupt", int(where)):
            world.ranks[where].executor.corrupt_next_promotion = True
        case ("lose", int(where)):
            tier_of(world.ranks[where]).lose("gone")
        case ("clear", int(where)):
            world.ranks[where].scheduler.cache.clear()
        case ("wait", int(where), int(count)):
            tier_of(world.ranks[where]).num_waits = count
        case ("drop", int(index)):
            world.drop(index)
        case _:
            raise AssertionError(operation)


@pytest.mark.parametrize("first_seed", range(0, NUM_SCHEDULES, SCHEDULES_A_CASE))
def test_after_any_history_of_both_tiers_everything_is_accounted_for(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + SCHEDULES_A_CASE):
        random = Random(seed)
        world = World(random_shape(random))
        operations = [random_operation(random) for _ in range(random.randrange(80))]
        try:
            for operation in operations:
                do(world, operation)
                world.check()
            world.finish()
        except Exception as error:
            error.add_note(f"seed {seed}: {world.shape}\n{operations}")
            raise
