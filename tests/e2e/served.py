"""`keepwarm serve` as a user starts it: a process, a port, a key."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

START_LIMIT_S = 120.0
STOP_LIMIT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A running server."""

    url: str
    key: str
    model: str
    max_context_tokens: int
    process: subprocess.Popen[bytes]
    log: Path

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers={"x-api-key": self.key}, timeout=120)

    def metric(self, name: str) -> float:
        """The sum of a metric's samples, as a monitoring system reads them."""
        text = httpx.get(f"{self.url}/metrics", headers={"x-api-key": self.key}).text
        samples = [line for line in text.splitlines() if line.split("{")[0].split(" ")[0] == name]
        assert samples, f"no metric {name} in:\n{text}"
        return sum(float(line.rsplit(" ", 1)[1]) for line in samples)

    def held_blocks(self) -> float:
        text = httpx.get(f"{self.url}/metrics", headers={"x-api-key": self.key}).text
        lines = [line for line in text.splitlines() if line.startswith("keepwarm_l0_blocks{")]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if 'state="held"' in line)

    def front_pid(self) -> int:
        """The backend process that lives now."""
        children = psutil.Process(self.process.pid).children()
        return next(child.pid for child in children if child.cmdline()[-1:] == ["backend"])

    def rank_pid(self) -> int:
        """The process that computes."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        return next(child.pid for child in children if "keepwarm.backend.rank_main" in child.cmdline())


def eventually(condition: object, *, limit_s: float = 30.0) -> None:
    """Wait for what another process will do; fail after the limit."""
    assert callable(condition)
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"still not true after {limit_s} s"
        time.sleep(0.05)  # the other process gives no signal to wait on


@contextlib.contextmanager
def serve(folder: Path, *options: str) -> Iterator[Served]:
    """Started, ready, and stopped at the end with nothing left behind."""
    ready, log = folder / "ready.json", folder / "serve.log"
    command = [sys.executable, "-m", "keepwarm", "serve", "--port", "0", "--json", str(ready)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--data-dir", str(folder / "data"), *options],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
    try:
        deadline = time.monotonic() + START_LIMIT_S
        while not ready.exists():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)  # the file is the signal
        said = json.loads(ready.read_text())
        assert said.pop("pid") == process.pid
        children = psutil.Process(process.pid).children(recursive=True)
        yield Served(**said, process=process, log=log)
    finally:
        process.terminate()
        process.wait(STOP_LIMIT_S)
    _gone, alive = psutil.wait_procs(children, timeout=STOP_LIMIT_S)
    assert not alive, f"left behind: {alive}"
