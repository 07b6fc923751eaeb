"""The step's own Python: plan, block tables, commit, events.

64 running turns of 2,000 blocks each over the scripted executor, whose own time is left out.

    python bench/step_python.py [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from keepwarm.core.hashing import BlockHasher, join_hashes, root_hash
from keepwarm.core.ids import RequestId, TenantId
from keepwarm.core.layout import CacheLayout, LayerGroup
from keepwarm.core.rank_messages import Submit
from keepwarm.core.sampling import GREEDY
from keepwarm.core.step import ExecutorLimits
from keepwarm.engine.scripted import ScriptedExecutor
from keepwarm.sched.scheduler import Scheduler, SchedulerSettings

BLOCK_SIZE = 16
KEY = bytes(32)


def build(num_turns: int, num_blocks_each: int, num_steps: int) -> tuple[Scheduler, ScriptedExecutor]:
    group = LayerGroup(kind="full", num_layers=1, window_tokens=None, bytes_per_token=1)
    limits = ExecutorLimits(
        layout=CacheLayout(block_size=BLOCK_SIZE, groups=(group,)),
        num_blocks=num_turns * (num_blocks_each + 64),
        max_num_seqs=num_turns,
        max_model_len=(num_blocks_each + 64) * BLOCK_SIZE,
        vocab_size=32_000,
    )
    hasher = BlockHasher(key=KEY, block_size=BLOCK_SIZE)
    settings = SchedulerSettings(max_num_batched_tokens=1 << 20)
    scheduler = Scheduler(limits=limits, hasher=hasher, settings=settings)
    generator = np.random.default_rng(0)
    root = root_hash(KEY, TenantId("bench"))
    for number in range(num_turns):
        tokens = generator.integers(0, 32_000, num_blocks_each * BLOCK_SIZE, dtype=np.int32)
        scheduler.submit(
            Submit(
                request_id=RequestId(f"turn{number}"),
                tokens=tokens.tobytes(),
                block_hashes=join_hashes(hasher.extend(root, tokens)),
                root=root,
                max_output_tokens=num_steps + 10,
                stop_tokens=(),
                sampling=GREEDY,
            )
        )
    return scheduler, ScriptedExecutor(limits=limits, verify=False)


def step(scheduler: Scheduler, executor: ScriptedExecutor) -> float:
    """One step; returns the scheduler's share in seconds."""
    started = time.perf_counter()
    plan = scheduler.plan(started)
    planned = time.perf_counter()
    executor.submit(plan)
    result = executor.collect()
    computed = time.perf_counter()
    scheduler.commit(result)
    scheduler.take_events()
    return (planned - started) + (time.perf_counter() - computed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=2_000)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    scheduler, executor = build(arguments.turns, arguments.blocks, arguments.steps)
    while scheduler.stats().output_tokens_total < arguments.turns:
        step(scheduler, executor)
    times_ms = sorted(step(scheduler, executor) * 1e3 for _ in range(arguments.steps))
    report = {
        "tool": "step_python",
        "settings": {"turns": arguments.turns, "blocks": arguments.blocks, "steps": arguments.steps},
        "p50_ms": statistics.median(times_ms),
        "p99_ms": times_ms[int(len(times_ms) * 0.99)],
        "max_ms": times_ms[-1],
        "limit_ms": 2.0,
        "pass": statistics.median(times_ms) < 2.0,
    }
    print(json.dumps(report, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(report))
    return 0 if report["pass"] else 1


if __name__ == "__main__":
    sys.exit(main())
