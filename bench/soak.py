"""Memory over thousands of requests, a third of them dropped midway.

Starts our server with a small cache, sends `--requests` streamed turns, `--at-once` at a time,
drops a random third of them at a random moment, and compares the resident memory of all our
processes after a warm-up quarter with that at the end. Every block must be free or cached then.

    python bench/soak.py [--engine scripted|torch] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
import time
from collections import defaultdict
from pathlib import Path

import httpx
import psutil

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.serving import Target, own_server, real_text

LIMIT_GROWTH_BYTES = 24 << 20


def resident_bytes(pid: int) -> int:
    """Of the server and all its children."""
    root = psutil.Process(pid)
    return sum(process.memory_info().rss for process in (root, *root.children(recursive=True)))


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


async def run(target: Target, *, requests: int, at_once: int, seed: int) -> dict[str, object]:
    if target.pid is None:
        raise SystemExit("the soak needs a server of its own")
    outcomes: dict[str, int] = {}
    samples: list[int] = []
    numbers = iter(range(requests))

    async def worker(name: int) -> None:
        rng, session = random.Random(seed * 1000 + name), list[str]()
        for number in numbers:
            outcome = await one_request(client, target, rng, session)
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
            if number % max(1, requests // 20) == 0:
                samples.append(resident_bytes(target.pid or 0))
                print(f"{number:6d} requests, {samples[-1] / 1e6:.1f} MB")

    limits = httpx.Limits(max_connections=at_once * 2)
    async with httpx.AsyncClient(timeout=120, limits=limits) as client:
        await asyncio.gather(*(worker(name) for name in range(at_once)))
        blocks = await settled_blocks(client, target)
    samples.append(resident_bytes(target.pid))
    warm = samples[len(samples) // 4]
    growth = samples[-1] - warm
    passed = growth <= LIMIT_GROWTH_BYTES and set(outcomes) <= {"finished", "dropped"} and not blocks["held"]
    return {
        "tool": "soak",
        "settings": {"requests": requests, "at_once": at_once, "seed": seed},
        "outcomes": outcomes,
        "resident_mb": [round(sample / 1e6, 1) for sample in samples],
        "growth_after_warm_up_mb": growth / 1e6,
        "limit_mb": LIMIT_GROWTH_BYTES / 1e6,
        "blocks": blocks,
        "pass": passed,
    }


async def settled_blocks(client: httpx.AsyncClient, target: Target) -> dict[str, float]:
    """Blocks by state once nothing runs; aborts need a step to be carried out."""
    deadline = time.monotonic() + 30
    while True:
        text = (await client.get(f"{target.url}/metrics", headers=target.headers)).text
        blocks: defaultdict[str, float] = defaultdict(float)  # of all ranks
        for line in text.splitlines():
            if line.startswith("keepwarm_l0_blocks{"):
                blocks[line.split('state="')[1].split('"')[0]] += float(line.rsplit(" ", 1)[1])
        if blocks.get("held") == 0 or time.monotonic() > deadline:
            return blocks
        await asyncio.sleep(0.5)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=2_000)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=["scripted", "torch"], default="scripted")
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        options = ["--engine", arguments.engine, "--device-cache-gb", "0.2", "--max-model-len", "4096"]
        target = stack.enter_context(own_server(*options))
        report = asyncio.run(
            run(target, requests=arguments.requests, at_once=arguments.at_once, seed=arguments.seed)
        )
    print(json.dumps(report, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(report))
    return 0 if report["pass"] else 1


if __name__ == "__main__":
    sys.exit(main())
