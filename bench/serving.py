"""A server to measure: ours, started for the purpose, or any at a URL. Shared by the benchmarks."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

START_LIMIT_S = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where to send requests; `pid` is the server's own process where we started it."""

    url: str
    key: str
    model: str
    pid: int | None = None

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}


@contextlib.contextmanager
def own_server(*options: str) -> Iterator[Target]:
    """`keepwarm serve` on a free port with a data directory of its own; stopped at the end."""
    with tempfile.TemporaryDirectory(prefix="keepwarm-bench-") as folder:
        ready = Path(folder) / "ready.json"
        command = [sys.executable, "-m", "keepwarm", "serve", "--port", "0", "--json", str(ready)]
        log = Path(folder) / "serve.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, "--data-dir", str(Path(folder) / "data"), *options],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )
        try:
            yield _await_ready(process, ready, log)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def _await_ready(process: subprocess.Popen[bytes], ready: Path, log: Path) -> Target:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError, json.JSONDecodeError):
            said = json.loads(ready.read_text())
            return Target(url=said["url"], key=said["key"], model=said["model"], pid=said["pid"])
        time.sleep(0.1)
    raise SystemExit(f"the server did not become ready:\n{log.read_text()[-4000:]}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One streamed chat completion, timed on the client's monotonic clock."""

    text: str
    ttft_s: float
    total_s: float
    prompt_tokens: int
    cached_tokens: int | None
    """None: the server does not say."""
    output_tokens: int


def ask(
    client: httpx.Client, target: Target, messages: Sequence[dict[str, str]], *, max_tokens: int
) -> Answer:
    """One greedy turn through `/v1/chat/completions`, the form every server here speaks."""
    body = {
        "model": target.model,
        "messages": list(messages),
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started = time.perf_counter()
    first_at: float | None = None
    pieces: list[str] = []
    usage: dict[str, object] = {}
    with client.stream(
        "POST", f"{target.url}/v1/chat/completions", json=body, headers=target.headers
    ) as response:
        if response.status_code != 200:
            raise SystemExit(f"{response.status_code}: {response.read().decode()[:500]}")
        for line in response.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            chunk = json.loads(line[6:])
            usage = chunk.get("usage") or usage
            text = "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
            if text and first_at is None:
                first_at = time.perf_counter()
            pieces.append(text)
    ended = time.perf_counter()
    details = usage.get("prompt_tokens_details")
    return Answer(
        text="".join(pieces),
        ttft_s=(first_at or ended) - started,
        total_s=ended - started,
        prompt_tokens=int(str(usage["prompt_tokens"])),
        cached_tokens=details.get("cached_tokens") if isinstance(details, dict) else None,
        output_tokens=int(str(usage["completion_tokens"])),
    )


def real_text(num_chars: int, *, salt: int) -> str:
    """Source text of the standard library: real, on every machine, different for each salt."""
    folder = Path(json.__file__).parent.parent
    files = sorted(path for path in folder.glob("*.py") if path.stat().st_size > 20_000)
    text = f"Project number {salt}.\n"
    index = salt * 7
    while len(text) < num_chars:
        text += files[index % len(files)].read_text(errors="ignore")
        index += 1
    return text[:num_chars]
