"""What a streamed token costs the host, and how late it comes.

Starts `keepwarm serve` with the scripted engine: everything is real but the device, which says one
token a stream every `--step-ms`, in words of the embedded model that pass its detokenizer and its
parser of tool calls. Opens `--streams` answers of /v1/messages over plain sockets, waits until all of
them speak, and then looks at several windows of time:

- CPU: user and system seconds of the gateway's and the front's process, a token that reached a client.
  The client is a third process and is not counted, nor is the rank, which stands for a device.
- Added latency: the scripted engine ends its steps on a grid of the monotonic clock, which all
  processes of a machine share, so that a token's age is known when it comes: what the rank needs to
  report a step is in it, the device's time is not. A stream's tokens are a step apart; where the rank
  missed the grid (`missed_steps`), its delay is counted as latency too.

For comparison the same client then reads as many streams of a bare server: uvicorn and a loop that
writes the same bytes, with no key, queue, second process, tokenizer or parser.

    python -m bench.streams [--streams 400] [--step-ms 50] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import math
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import uvloop

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.serving import Target, own_server
from bench.sse_streams import SseStream, open_streams, spoken
from keepwarm import __version__

LIMIT_CPU_US = 60.0
LIMIT_P99_MS = 50.0
ALL_SPEAK_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One stretch of time. CPU in microseconds a token, by process; latency in milliseconds."""

    tokens: int
    cpu_us: dict[str, float]
    latency_ms: dict[str, float]
    missed_steps: int
    """Of all streams together: steps of the grid in which a stream got no token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is asked of each server."""

    streams: int
    step_s: float
    window_s: float
    windows: int

    @property
    def max_tokens(self) -> int:
        """More than a stream can say while it is looked at."""
        return math.ceil((ALL_SPEAK_LIMIT_S + self.windows * self.window_s) / self.step_s)


async def watch(
    plan: Plan, host: str, port: int, key: str, processes: Mapping[str, psutil.Process]
) -> list[Window]:
    """The windows of one server."""
    streams = await open_streams(host, port, key, count=plan.streams, max_tokens=plan.max_tokens)
    try:
        await _until_all_speak(streams, plan.step_s)
        return [await _window(plan, streams, processes) for _ in range(plan.windows)]
    finally:
        for stream in streams:
            stream.close()


async def _until_all_speak(streams: Sequence[SseStream], step_s: float) -> None:
    deadline = time.monotonic() + ALL_SPEAK_LIMIT_S
    while not all(len(stream.came_at) > 20 for stream in streams):
        if time.monotonic() > deadline:
            silent = [stream for stream in streams if len(stream.came_at) <= 20]
            raise SystemExit(f"{len(silent)} streams do not speak: {silent[0].head!r}")
        await asyncio.sleep(step_s)


async def _window(
    plan: Plan, streams: Sequence[SseStream], processes: Mapping[str, psutil.Process]
) -> Window:
    gc.freeze()  # a collection here would be counted as the server's delay
    counts = [len(stream.came_at) for stream in streams]
    cpu_s = {name: _cpu_s(process) for name, process in processes.items()}
    await asyncio.sleep(plan.window_s)
    used_s = {name: _cpu_s(process) - cpu_s[name] for name, process in processes.items()}
    if any(stream.has_ended for stream in streams):
        raise SystemExit(f"{sum(stream.has_ended for stream in streams)} streams ended while they were read")
    came_at = [stream.came_at[count:] for stream, count in zip(streams, counts, strict=True)]
    tokens = sum(map(len, came_at))
    latencies_s = sorted(late for times in came_at for late in _latencies_s(times, plan.step_s))
    return Window(
        tokens=tokens,
        cpu_us={name: used / tokens * 1e6 for name, used in used_s.items()},
        latency_ms={
            name: latencies_s[min(len(latencies_s) - 1, int(len(latencies_s) * share))] * 1000
            for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
        },
        missed_steps=max(0, round(plan.window_s / plan.step_s) * plan.streams - tokens),
    )


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _latencies_s(came_at: Sequence[float], step_s: float) -> list[float]:
    """Ages of one stream's tokens, which were made a step apart and on the grid: the earliest that
    fits all of them, so that the youngest of them is less than a step old."""
    if not came_at:
        return []
    first = min(math.floor(at / step_s) - number for number, at in enumerate(came_at))
    return [at - (first + number) * step_s for number, at in enumerate(came_at)]


def _processes(target: Target) -> dict[str, psutil.Process]:
    gateway = psutil.Process(target.pid)
    (front,) = gateway.children()
    (rank,) = front.children()
    return {"gateway": gateway, "front": front, "rank": rank}


def watch_ours(plan: Plan) -> list[Window]:
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as script:
        script.write(f'[[answers]]\nsay = "{spoken(plan.max_tokens + 10)}"\n')
        script.flush()
        context = plan.max_tokens + 200
        options = {
            "--engine": "scripted",
            "--script": script.name,
            "--script-step-ms": plan.step_s * 1000,
            "--max-model-len": context,
            "--max-num-seqs": plan.streams,
            "--max-num-batched-tokens": plan.streams + 1024,
            "--device-cache-gb": plan.streams * context * 4096 * 1.1 / 1e9,
        }
        with own_server(*(str(word) for option in options.items() for word in option)) as target:
            url = urlsplit(target.url)
            watching = watch(plan, str(url.hostname), int(url.port or 80), target.key, _processes(target))
            return uvloop.run(watching)


@contextlib.contextmanager
def bare_server(step_s: float) -> Iterator[tuple[int, psutil.Process]]:
    """Its port and its process."""
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        words = ("--fd", str(listener.fileno()), "--step-ms", str(step_s * 1000))
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.sse_streams", *words], pass_fds=(listener.fileno(),)
        )
        try:
            yield listener.getsockname()[1], psutil.Process(process.pid)
        finally:
            process.kill()
            process.wait()


def watch_bare(plan: Plan) -> list[Window]:
    with bare_server(plan.step_s) as (port, process):
        return uvloop.run(watch(plan, "127.0.0.1", port, "none", {"bare": process}))


def median_of(windows: Sequence[Window], *names: str) -> float:
    """CPU microseconds a token of these processes together."""
    return statistics.median(sum(window.cpu_us[name] for name in names) for window in windows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=400)
    parser.add_argument("--step-ms", type=float, default=50.0)
    parser.add_argument("--window-s", type=float, default=4.0)
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--no-bare", action="store_true", help="leave the bare server out")
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    plan = Plan(
        streams=arguments.streams,
        step_s=arguments.step_ms / 1000,
        window_s=arguments.window_s,
        windows=arguments.windows,
    )
    report = report_of(plan, watch_ours(plan), [] if arguments.no_bare else watch_bare(plan))
    print(json.dumps(report, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1))
    return 0 if report["pass"] else 1


def report_of(plan: Plan, ours: Sequence[Window], bare: Sequence[Window]) -> dict[str, object]:
    cpu_us = median_of(ours, "gateway", "front")
    p99_ms = statistics.median(window.latency_ms["p99"] for window in ours)
    bare_us = median_of(bare, "bare") if bare else None
    return {
        "tool": "streams",
        "version": __version__,
        "settings": asdict(plan),
        "cpu_us_per_token": {
            "gateway_and_front": cpu_us,
            **{name: median_of(ours, name) for name in ("gateway", "front", "rank")},
            "bare": bare_us,
        },
        "times_bare": None if bare_us is None else cpu_us / bare_us,
        "added_latency_p99_ms": p99_ms,
        "bare_latency_p99_ms": statistics.median(w.latency_ms["p99"] for w in bare) if bare else None,
        "limits": {"cpu_us_per_token": LIMIT_CPU_US, "added_latency_p99_ms": LIMIT_P99_MS},
        "windows": [asdict(window) for window in ours],
        "bare_windows": [asdict(window) for window in bare],
        "pass": cpu_us <= LIMIT_CPU_US and p99_ms < LIMIT_P99_MS,
    }


if __name__ == "__main__":
    sys.exit(main())
