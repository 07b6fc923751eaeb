"""How much of the cache's worth is left when it is cut into ranks: the router against one big cache.

Coding agents of `--sessions` sessions, in virtual time: a system prompt and tools that all share, a
project each, turns of new tokens and an answer, pauses in between, subagents with a prompt of their
own. The shipped scheduler and cache run over the scripted executor. Each way of routing sees the same
conversations; device memory in all is the same, whether it is one cache or `--ranks`. "one L1": host
memory beside it that holds everything, whose copies take no time here.

    python -m bench.routing [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.virtual_ranks import (
    BLOCK_SIZE,
    EMPTY_TOKENS,
    KEY,
    VOCAB_SIZE,
    Clock,
    SharedHost,
    StepTimes,
    VirtualReplica,
)
from keepwarm.core.hashing import BlockHasher, join_hashes, root_hash
from keepwarm.core.ids import BlockHash, RequestId, TenantId, TokenIds, token_ids
from keepwarm.core.rank_messages import Admitted, CacheEvent, Ended, Submit, Tokens
from keepwarm.core.sampling import GREEDY
from keepwarm.core.session import SessionKey
from keepwarm.sched.router import Router

NUM_TURNS = 30
SYSTEM_TOKENS = 12_000
SUBAGENT_SYSTEM_TOKENS = 5_000
MAX_MODEL_LEN = 131_072
MAX_NUM_SEQS = 32
WITHIN = 0.02
MEMORY_SHARES = (1.25, 0.6, 0.3)
"""Device memory in all, as a part of what all conversations come to in the end."""
SHARES_THAT_COUNT = (1.25, 0.6)
"""Where one big cache holds all that comes back. With less, cutting it costs what cutting costs: that
is for host memory, which is one."""

_HASHER = BlockHasher(key=KEY, block_size=BLOCK_SIZE)
_ROOT = root_hash(KEY, TenantId("bench"))


# -- what agents do --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    num_new_tokens: int
    num_output_tokens: int
    pause_s: float
    """Before it: a tool runs, or somebody reads."""
    subagents: tuple[Agent, ...] = ()
    """Run once it is answered; the next turn waits for all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    key: SessionKey
    num_system_tokens: int
    """Of the beginning that all agents of its kind share."""
    turns: tuple[Turn, ...]


def made_up_trace(num_sessions: int, *, seed: int) -> list[Agent]:
    rng = random.Random(seed)
    return [_session(f"s{number}", rng) for number in range(num_sessions)]


def _session(name: str, rng: random.Random) -> Agent:
    turns = []
    for number in range(NUM_TURNS):
        if number == 0:  # all begin within ten minutes
            new, pause_s = rng.randint(4_000, 20_000), rng.uniform(0, 600)
        else:
            new = int(rng.lognormvariate(6.6, 0.9))  # 735 in the middle
            pause_s = rng.uniform(20, 180) if rng.random() < 0.15 else rng.uniform(1, 15)
        subagents: tuple[Agent, ...] = ()
        if number and rng.random() < 0.06:
            subagents = tuple(_subagent(name, f"{number}.{i}", rng) for i in range(rng.randint(1, 3)))
        turns.append(
            Turn(
                num_new_tokens=new,
                num_output_tokens=rng.randint(40, 400),
                pause_s=pause_s,
                subagents=subagents,
            )
        )
    return Agent(key=SessionKey(session=name), num_system_tokens=SYSTEM_TOKENS, turns=tuple(turns))


def _subagent(session: str, agent: str, rng: random.Random) -> Agent:
    turns = tuple(
        Turn(
            num_new_tokens=int(rng.lognormvariate(6.6, 0.9)),
            num_output_tokens=rng.randint(40, 300),
            pause_s=rng.uniform(0.5, 8),
        )
        for _ in range(rng.randint(3, 8))
    )
    key = SessionKey(session=session, agent=agent)
    return Agent(key=key, num_system_tokens=SUBAGENT_SYSTEM_TOKENS, turns=turns)


def tokens_in_the_end(trace: Sequence[Agent]) -> int:
    """Of all sessions' last prompts and answers, what they share counted once."""
    own = sum(
        turn.num_new_tokens + turn.num_output_tokens
        for agent in trace
        for each in (agent, *(sub for turn in agent.turns for sub in turn.subagents))
        for turn in each.turns
    )
    return own + SYSTEM_TOKENS + SUBAGENT_SYSTEM_TOKENS


# -- ways to choose a rank -------------------------------------------------------------------------


class OnlyOne:
    """A `Choice`."""

    def choose(self, turn: Submit, session: SessionKey) -> int:
        return 0

    def hear(self, event: Admitted | Tokens | Ended) -> None: ...

    def cache_changed(self, rank: int, events: Sequence[CacheEvent]) -> None: ...

    def host_changed(self, events: Sequence[CacheEvent]) -> None: ...


class RoundRobin(OnlyOne):
    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self._num_turns = 0

    def choose(self, turn: Submit, session: SessionKey) -> int:
        self._num_turns += 1
        return self._num_turns % self._num_ranks


class ByRouter:
    """A `Choice`: the shipped one."""

    def __init__(self, num_ranks: int, num_blocks: int, *, has_host: bool) -> None:
        self._router = Router(num_ranks)
        for rank in range(num_ranks):
            self._router.rank_serves(rank, block_size=BLOCK_SIZE, num_blocks=num_blocks)
            self._router.set_can_promote(rank, has_host)

    def choose(self, turn: Submit, session: SessionKey) -> int:
        rank = self._router.route(turn, session)
        assert rank is not None  # both serve
        return rank

    def hear(self, event: Admitted | Tokens | Ended) -> None:
        self._router.hear(event)

    def cache_changed(self, rank: int, events: Sequence[CacheEvent]) -> None:
        self._router.take(rank, events)

    def host_changed(self, events: Sequence[CacheEvent]) -> None:
        self._router.take_host(events)


# -- one run ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Seen:
    """What clients and ranks saw."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    first_token_s: list[float] = field(default_factory=list)
    turns_of_rank: dict[int, int] = field(default_factory=dict)
    num_moves: int = 0
    """Turns that went to another rank than their agent's turn before."""

    @property
    def hit_rate(self) -> float:
        return self.cached_tokens / self.prompt_tokens


class RunningAgent:
    """One conversation, a turn after the other."""

    def __init__(
        self, agent: Agent, clock: Clock, replica: VirtualReplica, seen: Seen, on_over: Callable[[], None]
    ) -> None:
        self._agent, self._clock, self._replica, self._seen = agent, clock, replica, seen
        self._on_over = on_over
        self._tokens: TokenIds = _words(f"system {agent.num_system_tokens}", agent.num_system_tokens)
        self._answer: list[int] = []
        self._names: list[BlockHash] = []
        self._next = 0
        self._rank: int | None = None
        self._num_subagents = 0

    def go_on(self) -> None:
        """The next turn after its pause, or the end."""
        if self._next == len(self._agent.turns):
            self._on_over()
            return
        self._clock.after(self._agent.turns[self._next].pause_s, self._ask)

    def _ask(self) -> None:
        turn = self._agent.turns[self._next]
        name = f"{self._agent.key.session}/{self._agent.key.agent}/{self._next}"
        self._tokens = np.concatenate(
            [self._tokens, token_ids(self._answer), _words(name, turn.num_new_tokens)]
        )
        self._answer = []
        parent = self._names[-1] if self._names else _ROOT
        self._names += _HASHER.extend(parent, self._tokens[len(self._names) * BLOCK_SIZE :])
        submit = Submit(
            request_id=RequestId(name),
            tokens=self._tokens.tobytes(),
            block_hashes=join_hashes(self._names),
            root=_ROOT,
            max_output_tokens=turn.num_output_tokens,
            stop_tokens=(),
            sampling=GREEDY,
        )
        asked_at_s = self._clock.now_s
        rank = self._replica.submit(submit, self._agent.key, lambda event: self._hear(event, asked_at_s))
        self._seen.prompt_tokens += len(self._tokens)
        self._seen.turns_of_rank[rank] = self._seen.turns_of_rank.get(rank, 0) + 1
        self._seen.num_moves += self._rank not in (None, rank)
        self._rank = rank

    def _hear(self, event: Admitted | Tokens | Ended, asked_at_s: float) -> None:
        match event:
            case Admitted():
                self._seen.cached_tokens += event.cached_tokens
            case Tokens():
                if not self._answer:
                    self._seen.first_token_s.append(self._clock.now_s - asked_at_s)
                self._answer += event.tokens
            case Ended():
                assert event.reason == "length", event
                self._end_turn()

    def _end_turn(self) -> None:
        subagents = self._agent.turns[self._next].subagents
        self._next += 1
        self._num_subagents = len(subagents)
        if not subagents:
            self.go_on()
        for subagent in subagents:
            RunningAgent(subagent, self._clock, self._replica, self._seen, self._subagent_over).go_on()

    def _subagent_over(self) -> None:
        self._num_subagents -= 1
        if self._num_subagents == 0:
            self.go_on()


def _words(name: str, num_tokens: int) -> TokenIds:
    """The same for the same name."""
    if num_tokens == 0:
        return EMPTY_TOKENS
    return np.random.default_rng(list(name.encode())).integers(0, VOCAB_SIZE, num_tokens, dtype=np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How device memory is cut, and who chooses."""

    name: str
    num_ranks: int
    total_blocks: int
    choose: Callable[[int], OnlyOne | ByRouter]
    """Given the blocks of one rank."""
    host_blocks: int = 0


def run(trace: Sequence[Agent], way: Way, *, speed: float) -> Seen:
    """`speed`: of one rank, in ranks: one big cache computes as much as all of them."""
    clock, seen = Clock(), Seen()
    num_blocks = way.total_blocks // way.num_ranks
    times = StepTimes()
    replica = VirtualReplica(
        clock,
        way.choose(num_blocks),
        num_ranks=way.num_ranks,
        host=SharedHost(way.host_blocks) if way.host_blocks else None,
        times=StepTimes(step_s=times.step_s, token_s=times.token_s / speed),
        num_blocks=num_blocks,
        max_num_seqs=int(MAX_NUM_SEQS * speed),
        max_model_len=MAX_MODEL_LEN,
    )
    for agent in trace:
        RunningAgent(agent, clock, replica, seen, lambda: None).go_on()
    clock.run()
    return seen


def compare(trace: Sequence[Agent], num_ranks: int, share: float) -> list[dict[str, Any]]:
    """One row a way, at one size of device memory."""
    in_the_end = tokens_in_the_end(trace)
    total_blocks = int(in_the_end * share) // BLOCK_SIZE
    ways = [
        Way(name="one big cache", num_ranks=1, total_blocks=total_blocks, choose=lambda _: OnlyOne()),
        Way(
            name="router",
            num_ranks=num_ranks,
            total_blocks=total_blocks,
            choose=lambda num_blocks: ByRouter(num_ranks, num_blocks, has_host=False),
        ),
        Way(
            name="router, one L1",
            num_ranks=num_ranks,
            total_blocks=total_blocks,
            choose=lambda num_blocks: ByRouter(num_ranks, num_blocks, has_host=True),
            host_blocks=in_the_end // BLOCK_SIZE,
        ),
        Way(
            name="round robin",
            num_ranks=num_ranks,
            total_blocks=total_blocks,
            choose=lambda _: RoundRobin(num_ranks),
        ),
    ]
    rows = []
    for way in ways:
        seen = run(trace, way, speed=num_ranks / way.num_ranks)
        first_s = sorted(seen.first_token_s)
        rows.append(
            {
                "memory_share": share,
                "total_blocks": total_blocks,
                "way": way.name,
                "ranks": way.num_ranks,
                "turns": len(first_s),
                "hit_rate": seen.hit_rate,
                "first_token_p50_s": statistics.median(first_s),
                "first_token_p95_s": first_s[int(len(first_s) * 0.95)],
                "turns_of_rank": [seen.turns_of_rank[rank] for rank in sorted(seen.turns_of_rank)],
                "moves": seen.num_moves,
            }
        )
        _print_row(rows[-1])
    return rows


def hit_rate(rows: Sequence[dict[str, Any]], share: float, way: str) -> float:
    found: list[float] = [
        row["hit_rate"] for row in rows if (row["memory_share"], row["way"]) == (share, way)
    ]
    return found[0]


def _print_row(row: dict[str, Any]) -> None:
    print(
        f"{row['memory_share']:>6.2f}  {row['way']:<14} {row['hit_rate']:>8.4f} "
        f"{row['first_token_p50_s']:>8.3f} {row['first_token_p95_s']:>8.3f} {row['moves']:>6} "
        f"{row['turns_of_rank']}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=16)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=4)
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    trace = made_up_trace(arguments.sessions, seed=arguments.seed)
    print("memory  way            hit rate  ttft p50      p95  moves turns of each rank")
    rows = [row for share in MEMORY_SHARES for row in compare(trace, arguments.ranks, share)]
    ratio = min(
        hit_rate(rows, share, "router") / hit_rate(rows, share, "one big cache")
        for share in SHARES_THAT_COUNT
    )
    report = {
        "tool": "routing",
        "settings": {
            "sessions": arguments.sessions,
            "ranks": arguments.ranks,
            "seed": arguments.seed,
            "tokens_in_the_end": tokens_in_the_end(trace),
        },
        "rows": rows,
        "router_of_one_big_cache": ratio,
        "pass": ratio >= 1 - WITHIN,
    }
    print(json.dumps({key: report[key] for key in ("settings", "router_of_one_big_cache", "pass")}, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if report["pass"] else 1


if __name__ == "__main__":
    sys.exit(main())
