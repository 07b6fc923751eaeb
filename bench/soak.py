"""Memory and blocks over thousands of requests, a third of them dropped midway, ranks killed meanwhile.

Starts our server with a small cache, sends `--requests` streamed turns (or as many as `--seconds`
take), `--at-once` at a time, drops a random third of them at a random moment, and compares the
resident memory of all our processes after a warm-up quarter with that at the end. With
`--kill-every-s` one rank after the other is killed (SIGKILL); a turn may then fail, told so in its
stream, or be refused with a retry, and sessions come back from host memory. At the end no block of
any tier is held, every stream had its terminal event, and no process, socket or shared memory is left.

    python bench/soak.py [--engine scripted|torch] [--json FILE]
    python bench/soak.py --seconds 1200 --ranks 2 --kill-every-s 150
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import random
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.serving import Target, own_server, real_text

LIMIT_GROWTH_BYTES = 24 << 20
SETTLE_LIMIT_S = 60.0
SHARED_MEMORY = Path("/dev/shm")
RETRIED_STATUSES = {429, 503, 529}


def resident_bytes(pid: int) -> int:
    """Of the server and all its children, without the pages of host memory that they share."""
    total = 0
    for process in family(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            memory = process.memory_info()
            total += memory.rss - memory.shared
    return total


def family(pid: int) -> list[psutil.Process]:
    """The server's process and all below it."""
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


async def kill_ranks(pid: int, every_s: float) -> int:
    """One rank after the other, until cancelled."""
    for number in itertools.count():
        await asyncio.sleep(every_s)
        ranks = [process for process in family(pid) if "keepwarm.backend.rank_main" in process.cmdline()]
        if ranks:
            ranks.sort(key=lambda process: process.create_time())
            ranks[0].kill()  # the one that has lived longest
            print(f"rank {ranks[0].pid} killed ({number + 1})")
    raise AssertionError("counting ends nowhere")


async def one_request(
    client: httpx.AsyncClient, target: Target, rng: random.Random, session: list[str]
) -> str:
    """One turn of a growing conversation; returns how it ended."""
    session.append(real_text(rng.randrange(100, 600), salt=rng.randrange(10_000)))
    if len(session) > 5:
        session.clear()
        session.append(real_text(300, salt=rng.randrange(10_000)))
    messages = [{"role": "user", "content": session[0]}]
    for text in session[1:]:
        messages += [{"role": "assistant", "content": "Go on."}, {"role": "user", "content": text}]
    body = {"model": "default", "max_tokens": rng.randrange(1, 12), "stream": True, "messages": messages}
    drop_after = rng.randrange(0, 8) if rng.random() < 1 / 3 else None
    async with client.stream(
        "POST", f"{target.url}/v1/messages", json=body, headers=target.headers
    ) as response:
        if response.status_code != 200:
            await response.aread()
            if response.status_code in RETRIED_STATUSES and "retry-after" in response.headers:
                await asyncio.sleep(0.2)
                return "to be retried"
            if response.status_code >= 500:  # its rank died before the stream began
                return "error"
            return f"status {response.status_code}: {response.text[:200]}"
        lines = 0
        async for line in response.aiter_lines():
            lines += 1
            if drop_after is not None and lines > drop_after:
                return "dropped"
            if line == "event: message_stop":
                return "finished"
            if line == "event: error":
                return "error"
    return "cut"


async def run(
    target: Target, *, requests: int, seconds: float | None, at_once: int, seed: int, kill_every_s: float
) -> dict[str, object]:
    if target.pid is None:
        raise SystemExit("the soak needs a server of its own")
    outcomes: dict[str, int] = {}
    samples: list[int] = []
    ends_at = None if seconds is None else time.monotonic() + seconds
    sampled_every_s = (seconds or 0.0) / 20
    numbers = itertools.count() if seconds is not None else iter(range(requests))

    async def worker(name: int) -> None:
        rng, session = random.Random(seed * 1000 + name), list[str]()
        for number in numbers:
            if ends_at is not None and time.monotonic() > ends_at:
                return
            outcome = await one_request(client, target, rng, session)
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
            if ends_at is None and number % max(1, requests // 20) == 0:
                sample(number)

    def sample(number: int) -> None:
        samples.append(resident_bytes(target.pid or 0))
        print(f"{number:6d} requests, {samples[-1] / 1e6:.1f} MB")

    async def sampler() -> None:
        while True:
            sample(sum(outcomes.values()))
            await asyncio.sleep(sampled_every_s)

    limits = httpx.Limits(max_connections=at_once * 2)
    async with httpx.AsyncClient(timeout=120, limits=limits) as client:
        beside: list[asyncio.Task[Any]] = [asyncio.create_task(sampler())] if ends_at is not None else []
        if kill_every_s:
            beside.append(asyncio.create_task(kill_ranks(target.pid, kill_every_s)))
        await asyncio.gather(*(worker(name) for name in range(at_once)))
        for task in beside:
            task.cancel()
        blocks = await settled_blocks(client, target)
        counters = await totals(client, target)
    samples.append(resident_bytes(target.pid))
    warm = samples[len(samples) // 4]
    growth = samples[-1] - warm
    allowed = {"finished", "dropped"} | ({"error", "to be retried"} if kill_every_s else set())
    restarted = not kill_every_s or counters["rank_restarts"] > 0
    passed = growth <= LIMIT_GROWTH_BYTES and set(outcomes) <= allowed and not held(blocks) and restarted
    return {
        "tool": "soak",
        "settings": {
            "requests": requests,
            "seconds": seconds,
            "at_once": at_once,
            "seed": seed,
            "kill_every_s": kill_every_s,
        },
        "outcomes": outcomes,
        "resident_mb": [round(sample / 1e6, 1) for sample in samples],
        "growth_after_warm_up_mb": growth / 1e6,
        "limit_mb": LIMIT_GROWTH_BYTES / 1e6,
        "blocks": blocks,
        "totals": counters,
        "pass": passed,
    }


async def settled_blocks(client: httpx.AsyncClient, target: Target) -> dict[str, float]:
    """Blocks by tier and state once nothing runs; aborts and copies need steps to be carried out."""
    deadline = time.monotonic() + SETTLE_LIMIT_S
    while True:
        blocks: defaultdict[str, float] = defaultdict(float)  # of all ranks
        for name, labels, value in await metrics(client, target):
            if name in ("keepwarm_l0_blocks", "keepwarm_l1_blocks"):
                blocks[f"{name[9:11]} {labels['state']}"] += value
        if not held(blocks) or time.monotonic() > deadline:
            return dict(blocks)
        await asyncio.sleep(0.5)


def held(blocks: Mapping[str, float]) -> float:
    """Blocks that somebody computes, reads or copies."""
    return sum(blocks.get(state, 0.0) for state in ("l0 held", "l1 writing", "l1 leased"))


async def totals(client: httpx.AsyncClient, target: Target) -> dict[str, float]:
    """What ranks counted, since their last start, and how often they were started again."""
    found: defaultdict[str, float] = defaultdict(float)
    for name, labels, value in await metrics(client, target):
        if name == "keepwarm_rank_restarts_total":
            found["rank_restarts"] += value
        elif name == "keepwarm_copied_blocks_total":
            found[f"copied_blocks {labels['direction']}"] += value
    return dict(found)


async def metrics(client: httpx.AsyncClient, target: Target) -> list[tuple[str, dict[str, str], float]]:
    text = (await client.get(f"{target.url}/metrics", headers=target.headers)).text
    return [
        (sample.name, sample.labels, sample.value)
        for family_of in text_string_to_metric_families(text)
        for sample in family_of.samples
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=2_000)
    parser.add_argument("--seconds", type=float, default=None, help="instead of --requests")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--host-cache-gb", type=float, default=0.5)
    parser.add_argument("--kill-every-s", type=float, default=0.0, help="0: no rank is killed")
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=["scripted", "torch"], default="scripted")
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    shared_before = set(SHARED_MEMORY.iterdir())
    with contextlib.ExitStack() as stack:
        options = ["--engine", arguments.engine, "--device-cache-gb", "0.2", "--max-model-len", "4096"]
        options += ["--ranks", str(arguments.ranks), "--host-cache-gb", str(arguments.host_cache_gb)]
        target = stack.enter_context(own_server(*options))
        report = asyncio.run(
            run(
                target,
                requests=arguments.requests,
                seconds=arguments.seconds,
                at_once=arguments.at_once,
                seed=arguments.seed,
                kill_every_s=arguments.kill_every_s,
            )
        )
        ours = family(target.pid or 0)
    left = [process.pid for process in ours if process.is_running()]
    left_in_memory = [path.name for path in set(SHARED_MEMORY.iterdir()) - shared_before]
    report |= {"processes_left": left, "shared_memory_left": left_in_memory}
    report["pass"] = report["pass"] and not left and not left_in_memory
    print(json.dumps(report, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(report))
    return 0 if report["pass"] else 1


if __name__ == "__main__":
    sys.exit(main())
