"""Blocks to host memory and back through the engine, against a plain loop that copies the same bytes.

    python -m bench.tier_copies [--json FILE] [--model PATH] [--blocks 512] [--rounds 7]

The plain loop copies one block after the other between two stretches of memory, whole, without layers, sums,
threads or plans; it is timed in turns with the engine. What counts is the processor's time of all threads,
which other work on the machine spoils least: one thread copies, so on a quiet machine it is the time that
passes, which is reported too. Beside that, without a target: a loop that copies each layer's keys and values
of each block by themselves; a first copy down, into memory that nobody has touched; a step of decoding alone
and with copies running. Exit status 0 when every target is met, 1 when not.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

import keepwarm
from bench.engine_speed import as_a_rank_runs, embedded_model
from keepwarm.core.host_tier import ArenaLayout, HostArena
from keepwarm.core.ids import BlockIds, RequestId, Slot, block_ids, token_ids
from keepwarm.core.sampling import GREEDY
from keepwarm.core.step import BlockCopies, CopyId, Executor, SequenceStart, SequenceWork, StepId, StepPlan
from keepwarm.engine.settings import EngineSettings
from keepwarm.engine.torch_executor import build_torch_executor

AT_LEAST = 0.7
"""Of the plain loop's speed."""
DEVICE_CACHE_GB = 3.0
CONTEXT_TOKENS = 512
DECODE_STEPS = 8

Direction = Literal["demote", "promote"]
Orders = dict[str, tuple[BlockIds, BlockIds]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The engine's speed as a share of the plain loop's."""

    name: str
    share: float
    """Of the processor's time."""
    wall_share: float
    gb_per_s: float
    """By the processor's time."""
    wall_gb_per_s: float
    plain_gb_per_s: float
    plain_wall_gb_per_s: float
    at_least: float | None = AT_LEAST

    @property
    def passed(self) -> bool:
        return self.at_least is None or self.share >= self.at_least


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    wall_s: float
    cpu_s: float
    """Of all threads."""


class Memory:
    """Shared memory as the process that keeps host memory makes it."""

    def __init__(self, layout: ArenaLayout) -> None:
        descriptor = os.memfd_create("tier_copies")
        os.ftruncate(descriptor, layout.total_bytes)
        self.arena = HostArena(memory=memoryview(mmap.mmap(descriptor, layout.total_bytes)), layout=layout)
        os.close(descriptor)

    @property
    def rows(self) -> npt.NDArray[np.uint8]:
        layout = self.arena.layout
        memory = np.frombuffer(self.arena.memory, dtype=np.uint8)[layout.slots_offset : layout.total_bytes]
        return memory.reshape(layout.num_slots, layout.slot_bytes)


class Driver:
    """Plays the scheduler; copies use the first `num_blocks` blocks, the one sequence those behind them."""

    def __init__(self, executor: Executor, num_blocks: int) -> None:
        self._executor = executor
        self._num_blocks = num_blocks
        self._step = self._copy = 0

    def fill(self, num_tokens: int) -> None:
        """Read a prompt, for the steps of decoding."""
        blocks = self._executor.limits.layout.blocks_for(num_tokens + 1024)
        start = SequenceStart(
            slot=Slot(0),
            request_id=RequestId("bench"),
            tokens=token_ids([5 + number % 1000 for number in range(num_tokens)]),
            num_prompt_tokens=num_tokens,
            blocks=block_ids(range(self._num_blocks, self._num_blocks + blocks)),
            sampling=GREEDY,
        )
        work = SequenceWork(slot=Slot(0), start=0, end=num_tokens, sample=True)
        self._run(StepPlan(step_id=self._next(), starts=[start], works=[work]))

    def decode(self, position: int) -> None:
        work = SequenceWork(slot=Slot(0), start=position, end=position + 1, sample=True)
        self._run(StepPlan(step_id=self._next(), works=[work]))

    def begin(self, direction: Direction, blocks: BlockIds, slots: BlockIds) -> int:
        """Copies heard of when the plan itself is collected."""
        self._copy += 1
        copies = BlockCopies(copy_id=CopyId(self._copy), direction=direction, blocks=blocks, slots=slots)
        return self._run(StepPlan(step_id=self._next(), copies=[copies]))

    def wait(self) -> int:
        return self._run(StepPlan(step_id=self._next(), awaits_copy=True))

    def copy(self, direction: Direction, blocks: BlockIds, slots: BlockIds) -> None:
        if not self.begin(direction, blocks, slots):
            self.wait()

    def _next(self) -> StepId:
        self._step += 1
        return StepId(self._step)

    def _run(self, plan: StepPlan) -> int:
        self._executor.submit(plan)
        copies = self._executor.collect().copies
        if not all(copy.is_sound for copy in copies):
            raise SystemExit("a copy was not sound")
        return len(copies)


def main() -> int:
    arguments = _arguments()
    settings = EngineSettings(model_path=arguments.model, max_num_seqs=2, device_cache_gb=DEVICE_CACHE_GB)
    executor, description = build_torch_executor(settings)
    layout = ArenaLayout(num_slots=arguments.blocks, slot_bytes=executor.limits.layout.bytes_per_block)
    driver = Driver(executor, arguments.blocks)
    orders = _orders(arguments.blocks)
    first = _first_copies(executor, driver, layout, orders)
    memory = Memory(layout)
    executor.attach_arena(memory.arena)
    num_parts = 2 * sum(group.num_layers for group in executor.limits.layout.groups)
    times = _copies(driver, memory.rows, orders, num_parts=num_parts, rounds=arguments.rounds)
    driver.fill(CONTEXT_TOKENS)
    decode = _decode(driver, orders)
    num_bytes = layout.num_slots * layout.slot_bytes
    checks = [
        _check(f"{direction}, {name}", times[f"{direction} {name}"], times[f"plain {direction}"], num_bytes)
        for direction in ("demote", "promote")
        for name in orders
    ]
    checks += [
        _check(
            "by layer, without engine",
            times["by layer demote"],
            times["plain demote"],
            num_bytes,
            at_least=None,
        ),
        _check("demote, first touch", [first[0]], [first[1]], num_bytes, at_least=None),
    ]
    _report(arguments, description, num_bytes, checks, decode)
    executor.close()
    return 0 if all(check.passed for check in checks) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures there ('-': standard output)")
    parser.add_argument("--model", default=None, help="a GGUF file or a folder; default: the embedded model")
    parser.add_argument("--blocks", type=int, default=512, help="blocks that one copy moves")
    parser.add_argument("--rounds", type=int, default=7, help="times each thing is measured")
    arguments = parser.parse_args()
    arguments.model = arguments.model or embedded_model()
    return arguments


def _orders(num_blocks: int) -> Orders:
    """Blocks that follow each other as their slots do, and blocks that do not."""
    together = block_ids(range(num_blocks))
    scattered = block_ids(np.random.default_rng(3).permutation(num_blocks))
    return {"together": (together, together), "scattered": (scattered, together)}


def _first_copies(
    executor: Executor, driver: Driver, layout: ArenaLayout, orders: Orders
) -> tuple[Timed, Timed]:
    """A first copy down and a first plain loop, each into memory of its own."""
    # Blocks that were never written are no memory yet: copy something up into all of them.
    executor.attach_arena(Memory(layout).arena)
    driver.copy("promote", *orders["together"])
    executor.attach_arena(Memory(layout).arena)
    engine = _timed(partial(driver.copy, "demote", *orders["together"]))
    rows = Memory(layout).rows
    source = _like_the_pools(rows)
    return engine, _timed(partial(_plain, source, rows))


def _copies(
    driver: Driver, rows: npt.NDArray[np.uint8], orders: Orders, *, num_parts: int, rounds: int
) -> dict[str, list[Timed]]:
    """Copies through the engine and plain loops, one after the other."""
    source = _like_the_pools(rows)
    parts = source.reshape(num_parts, len(rows), -1)
    works: dict[str, Callable[[], None]] = {
        "plain demote": partial(_plain, source, rows),
        "plain promote": partial(_plain, rows, source),
        "by layer demote": partial(_plain_by_layer, parts, rows),
    }
    for name, places in orders.items():
        works[f"demote {name}"] = partial(driver.copy, "demote", *places)
        works[f"promote {name}"] = partial(driver.copy, "promote", *places)
    for work in works.values():  # once untimed: memory is taken as it is first touched
        work()
    times: dict[str, list[Timed]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            times[name].append(_timed(work))
    return times


def _like_the_pools(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Memory of the engine's own kind: numpy's begins where copying is slower, not on a cache line."""
    made: npt.NDArray[np.uint8] = torch.ones(rows.shape, dtype=torch.uint8).numpy()
    return made


def _plain(source: npt.NDArray[np.uint8], target: npt.NDArray[np.uint8]) -> None:
    for row in range(len(source)):
        target[row] = source[row]


def _plain_by_layer(source: npt.NDArray[np.uint8], target: npt.NDArray[np.uint8]) -> None:
    """`source`: (num_parts, num_blocks, bytes of a part), as the pools have it."""
    parts = target.reshape(len(target), len(source), -1)
    for row in range(len(target)):
        for part in range(len(source)):
            parts[row, part] = source[part, row]


def _decode(driver: Driver, orders: Orders) -> dict[str, float]:
    """Seconds a step of one sequence, alone and begun together with a copy down of all blocks."""
    alone: list[Timed] = []
    beside: list[Timed] = []
    for position in range(CONTEXT_TOKENS, CONTEXT_TOKENS + 2 * DECODE_STEPS, 2):
        alone.append(_timed(partial(driver.decode, position)))
        ended = driver.begin("demote", *orders["together"])
        beside.append(_timed(partial(driver.decode, position + 1)))
        if not ended:
            driver.wait()
    return {"decode_alone_s": _median(alone).wall_s, "decode_beside_a_copy_s": _median(beside).wall_s}


def _timed(work: Callable[[], None]) -> Timed:
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    work()
    return Timed(wall_s=time.perf_counter() - wall_s, cpu_s=time.process_time() - cpu_s)


def _median(times: list[Timed]) -> Timed:
    return Timed(
        wall_s=statistics.median(timed.wall_s for timed in times),
        cpu_s=statistics.median(timed.cpu_s for timed in times),
    )


def _check(
    name: str, ours: list[Timed], plain: list[Timed], num_bytes: int, *, at_least: float | None = AT_LEAST
) -> Check:
    engine, loop = _median(ours), _median(plain)
    return Check(
        name=name,
        share=loop.cpu_s / engine.cpu_s,
        wall_share=loop.wall_s / engine.wall_s,
        gb_per_s=num_bytes / engine.cpu_s / 1e9,
        wall_gb_per_s=num_bytes / engine.wall_s / 1e9,
        plain_gb_per_s=num_bytes / loop.cpu_s / 1e9,
        plain_wall_gb_per_s=num_bytes / loop.wall_s / 1e9,
        at_least=at_least,
    )


def _report(
    arguments: argparse.Namespace,
    description: str,
    num_bytes: int,
    checks: list[Check],
    decode: dict[str, float],
) -> None:
    print(f"{description}; {arguments.blocks} blocks, {num_bytes / 1e6:.0f} MB a copy", file=sys.stderr)
    for check in checks:
        target = ""
        if check.at_least is not None:
            target = f"(at least {check.at_least}) {'ok' if check.passed else 'MISSED'}"
        print(
            f"  {check.name:24} {check.gb_per_s:6.2f} GB/s, plain {check.plain_gb_per_s:6.2f}: "
            f"{check.share:5.2f}x; wall {check.wall_gb_per_s:6.2f}, {check.plain_wall_gb_per_s:6.2f}: "
            f"{check.wall_share:5.2f}x {target}",
            file=sys.stderr,
        )
    for name, seconds in decode.items():
        print(f"  {name:26} {seconds:9.4f}", file=sys.stderr)
    if arguments.json:
        content = {
            "tool": "tier_copies",
            "version": keepwarm.__version__,
            "pass": all(check.passed for check in checks),
            "settings": {
                "model": Path(arguments.model).name,
                "blocks": arguments.blocks,
                "rounds": arguments.rounds,
            },
            "measured": decode | {"bytes_a_copy": num_bytes},
            "checks": [asdict(check) | {"passed": check.passed} for check in checks],
        }
        text = json.dumps(content, indent=2)
        if arguments.json == "-":
            print(text)
        else:
            Path(arguments.json).write_text(text + "\n")


if __name__ == "__main__":
    as_a_rank_runs()
    sys.exit(main())
