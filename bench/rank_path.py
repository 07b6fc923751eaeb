"""A warm turn's CPU time in the rank's process: from the bytes of its message to its blocks' release.

A conversation that is cached but for `--new` tokens, over the scripted executor, which computes
nothing. The message comes through a socket; one output token is sampled; times are the engine
thread's CPU time, medians over `--rounds` turns, each longer than the last. Everything is done twice:
with device memory alone, and with a `keepwarm hostcache` to which the turn's new blocks go at its end
(less what the executor takes to pretend that it copies).

The baseline, in the same run and on the same message, is the same work a block at a time in plain
Python: names cut apart, looked up, held, put into a table and released one by one, tokens listed.

    python bench/rank_path.py [--json FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from keepwarm.backend.host_client import HostClient, attach
from keepwarm.backend.hostcache import HostCacheSettings
from keepwarm.backend.rank_engine import RankEngine
from keepwarm.backend.rank_link import BlockingLink, encode_message
from keepwarm.core.hashing import HASH_BYTES, BlockHasher, join_hashes, root_hash
from keepwarm.core.host_tier import HostGeometry
from keepwarm.core.ids import BlockHash, RequestId, TenantId, TokenIds, token_ids
from keepwarm.core.layout import CacheLayout, LayerGroup
from keepwarm.core.rank_messages import Abort, Cut, Report, Submit
from keepwarm.core.sampling import GREEDY
from keepwarm.core.step import ExecutorLimits, StepId, StepPlan, StepResult
from keepwarm.engine.scripted import ScriptedExecutor
from keepwarm.sched.scheduler import Scheduler, SchedulerSettings

BLOCK_SIZE = 16
KEY = bytes(32)
VOCAB_SIZE = 32_000
STEP_TOKENS = 4_096
SIZES_TOKENS = (20_000, 100_000, 450_000, 1_000_000)
LIMIT_AT_TOKENS = 450_000
LIMIT_MS = 3.0
PATIENCE_S = 60.0
HOST_CACHE_GB = 0.1


def cpu_s() -> float:
    """Of this thread. Asking takes tens of microseconds on some machines."""
    return time.thread_time()


class Parts:
    """CPU time of this thread, by part, less what asking for it takes; nothing while it is off."""

    def __init__(self, *, on: bool = True) -> None:
        self.on = on
        self.spent_s: dict[str, float] = defaultdict(float)
        self._asking_s = statistics.median(-cpu_s() + cpu_s() for _ in range(9)) if on else 0.0

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        if not self.on:
            yield
            return
        started_s = cpu_s()
        yield
        self.spent_s[name] += cpu_s() - started_s - self._asking_s


class TimedScheduler(Scheduler):
    parts = Parts()

    def submit(self, turn: Submit) -> None:
        with self.parts.part("submit"):
            super().submit(turn)

    def plan(self, now_s: float) -> StepPlan:
        with self.parts.part("plan"):
            return super().plan(now_s)

    def commit(self, result: StepResult) -> None:
        with self.parts.part("commit"):
            super().commit(result)


class TimedExecutor(ScriptedExecutor):
    parts = Parts()

    def submit(self, plan: StepPlan) -> StepId:
        with self.parts.part("execute" if plan.works or not plan.copies else "copy"):
            return super().submit(plan)


class Conversation:
    """What a front knows of one: its tokens, and their names, made once."""

    def __init__(self) -> None:
        self._hasher = BlockHasher(key=KEY, block_size=BLOCK_SIZE)
        self._root = root_hash(KEY, TenantId("bench"))
        self._random = np.random.default_rng(0)
        self._tokens: TokenIds = token_ids([])
        self._names: list[BlockHash] = []
        self._num_turns = 0

    def turn(self, num_new_tokens: int) -> Submit:
        new = self._random.integers(0, VOCAB_SIZE, num_new_tokens, dtype=np.int32)
        self._tokens = np.concatenate([self._tokens, new])
        parent = self._names[-1] if self._names else self._root
        self._names += self._hasher.extend(parent, self._tokens[len(self._names) * BLOCK_SIZE :])
        self._num_turns += 1
        return Submit(
            request_id=RequestId(f"turn{self._num_turns}"),
            tokens=self._tokens.tobytes(),
            block_hashes=join_hashes(self._names),
            root=self._root,
            max_output_tokens=1,
            stop_tokens=(),
            sampling=GREEDY,
        )


class Rank:
    """The rank's side of the socket, without its process."""

    def __init__(self, max_tokens: int, *, host_socket: str | None = None) -> None:
        group = LayerGroup(kind="full", num_layers=1, window_tokens=None, bytes_per_token=8)
        limits = ExecutorLimits(
            layout=CacheLayout(block_size=BLOCK_SIZE, groups=(group,)),
            num_blocks=2 * max_tokens // BLOCK_SIZE,
            max_num_seqs=16,
            max_model_len=max_tokens,
            vocab_size=VOCAB_SIZE,
        )
        executor = TimedExecutor(limits=limits, verify=False)
        self._host: HostClient | None = None
        if host_socket is not None:
            self._host = attach(host_socket, rank=0, geometry=_geometry(limits))
            executor.attach_arena(self._host.arena)
        self._scheduler = TimedScheduler(
            limits=limits,
            hasher=BlockHasher(key=KEY, block_size=BLOCK_SIZE),
            settings=SchedulerSettings(max_num_batched_tokens=STEP_TOKENS),
            host=self._host,
        )
        self._engine = RankEngine(
            scheduler=self._scheduler,
            executor=executor,
            close_host=self._host.close if self._host else None,
        )
        self._front, ours = socket.socketpair()
        self._link = BlockingLink(ours)
        self._sender = ThreadPoolExecutor(1)

    def answer_by_part(self, turn: Submit) -> dict[str, float]:
        parts = Parts()
        self.answer(turn, parts)
        return parts.spent_s

    def answer(self, turn: Submit, parts: Parts | None = None) -> float:
        """Serve one turn to its end; CPU seconds."""
        parts = parts or Parts(on=False)
        TimedScheduler.parts = TimedExecutor.parts = parts
        self._sender.submit(self._front.sendall, encode_message(turn))
        started_s = cpu_s()
        with parts.part("receive"):
            message = self._receive()
        self._engine.handle(message)
        while self._engine.has_work:
            self._engine.step(_ignore)
            self._engine.report()
        return cpu_s() - started_s

    def check_s(self) -> float:
        """What the integrity check of an idle rank takes."""
        started_s = cpu_s()
        self._engine.check_when_idle()
        return cpu_s() - started_s

    def cached_tokens(self) -> int:
        return self._scheduler.stats().cached_tokens_total

    def demoted_blocks(self) -> int:
        return self._scheduler.stats().demoted_blocks_total

    def close(self) -> None:
        self._engine.close()
        self._sender.shutdown()
        self._front.close()

    def _receive(self) -> Submit | Abort | Cut:
        while True:
            for message in self._link.receive(PATIENCE_S):
                if isinstance(message, Submit | Abort | Cut):
                    return message


def _geometry(limits: ExecutorLimits) -> HostGeometry:
    """Of another identity for each size, so that nothing is found that a smaller one left."""
    return HostGeometry(
        identity=str(limits.max_model_len).encode(),
        block_size=BLOCK_SIZE,
        slot_bytes=limits.layout.bytes_per_block,
    )


@contextlib.contextmanager
def running_hostcache() -> Iterator[str]:
    """Its socket."""
    with tempfile.TemporaryDirectory() as folder:
        socket_path = f"{folder}/host.sock"
        settings = HostCacheSettings(socket_path=socket_path, host_cache_gb=HOST_CACHE_GB, pinned=False)
        command = (sys.executable, "-m", "keepwarm", "hostcache")
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(settings) + b"\n")
        process.stdin.flush()
        assert process.stdout.readline(), "no host memory"
        yield socket_path
        process.stdin.close()
        process.wait(PATIENCE_S)


def _ignore(report: Report) -> None:
    """Nobody is told."""


class BlockByBlock:
    """The baseline: one Python object a block, one look a block at each stage of a turn."""

    def __init__(self) -> None:
        self._by_name: dict[bytes, int] = {}
        self._references: list[int] = []
        self._lru: OrderedDict[int, None] = OrderedDict()

    def answer(self, turn: Submit) -> float:
        """CPU seconds."""
        started_s = cpu_s()
        names = [
            turn.block_hashes[at : at + HASH_BYTES] for at in range(0, len(turn.block_hashes), HASH_BYTES)
        ]
        np.frombuffer(turn.tokens, dtype=np.int32).tolist()
        blocks = [block for name in names if (block := self._by_name.get(name)) is not None]
        for block in blocks:
            if self._references[block] == 0:
                del self._lru[block]
            self._references[block] += 1
        for name in names[len(blocks) :]:
            self._by_name[name] = len(self._references)
            blocks.append(len(self._references))
            self._references.append(1)
        tuple(blocks)
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                self._lru[block] = None
        return cpu_s() - started_s


def measure(num_tokens: int, *, host_socket: str, new: int, rounds: int) -> dict[str, object]:
    """Medians over the turns of one conversation that begins with `num_tokens`."""
    num_turns = 2 * rounds + 2
    rank = Rank(num_tokens + (num_turns + 1) * new)
    conversation, baseline = Conversation(), BlockByBlock()
    cold = conversation.turn(num_tokens)
    rank.answer(cold)
    baseline.answer(cold)
    warm_s: list[float] = []
    baseline_s: list[float] = []
    by_part_s: list[dict[str, float]] = []
    for _ in range(num_turns // 2):
        by_part_s.append(rank.answer_by_part(conversation.turn(new)))
        turn, cached_before = conversation.turn(new), rank.cached_tokens()
        warm_s.append(rank.answer(turn))
        baseline_s.append(baseline.answer(turn))
        cached = rank.cached_tokens() - cached_before
        assert cached >= len(turn.tokens) // 4 - new - BLOCK_SIZE, "the turn was not warm"
    check_ms = rank.check_s() * 1e3
    rank.close()
    with_host_ms = measure_with_host(num_tokens, host_socket=host_socket, new=new, rounds=rounds)
    parts_ms = {name: statistics.median(turn[name] for turn in by_part_s[1:]) * 1e3 for name in by_part_s[0]}
    warm_ms, baseline_ms = (statistics.median(times_s[1:]) * 1e3 for times_s in (warm_s, baseline_s))
    return {
        "tokens": num_tokens,
        "blocks": num_tokens // BLOCK_SIZE,
        "baseline_ms": round(baseline_ms, 3),
        "warm_ms": round(warm_ms, 3),
        "warm_with_host_ms": round(with_host_ms, 3),
        "ratio": round(baseline_ms / warm_ms, 2),
        "parts_ms": {name: round(value, 3) for name, value in parts_ms.items()},
        "check_ms": round(check_ms, 3),
    }


def measure_with_host(num_tokens: int, *, host_socket: str, new: int, rounds: int) -> float:
    """Median milliseconds of a warm turn whose new blocks go down to host memory at its end."""
    rank, conversation = Rank(num_tokens + (rounds + 1) * new, host_socket=host_socket), Conversation()
    rank.answer(conversation.turn(num_tokens))
    warm_s: list[float] = []
    for _ in range(rounds):
        demoted_before = rank.demoted_blocks()
        parts = Parts()
        warm_s.append(rank.answer(conversation.turn(new), parts) - parts.spent_s["copy"])
        assert rank.demoted_blocks() - demoted_before >= new // BLOCK_SIZE, "nothing went down"
    rank.close()
    return statistics.median(warm_s[1:]) * 1e3


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--new", type=int, default=1_000, help="uncached tokens of a warm turn")
    parser.add_argument("--rounds", type=int, default=30, help="warm turns a size")
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    with running_hostcache() as host_socket:
        sizes = [
            measure(num_tokens, host_socket=host_socket, new=arguments.new, rounds=arguments.rounds)
            for num_tokens in SIZES_TOKENS
        ]
    at_limit = next(size for size in sizes if size["tokens"] == LIMIT_AT_TOKENS)
    report = {
        "tool": "rank_path",
        "settings": {"new": arguments.new, "rounds": arguments.rounds, "block_size": BLOCK_SIZE},
        "sizes": sizes,
        "limit_ms": LIMIT_MS,
        "limit_at_tokens": LIMIT_AT_TOKENS,
        "pass": max(float(str(at_limit[key])) for key in ("warm_ms", "warm_with_host_ms")) < LIMIT_MS,
    }
    print(json.dumps(report, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(report))
    return 0 if report["pass"] else 1


if __name__ == "__main__":
    sys.exit(main())
