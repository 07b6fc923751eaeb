"""The processes below a `keepwarm serve`, and waiting for what becomes of them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import httpx
import psutil

from tests.cli.command import COMMAND_LIMIT_S, Serving

TURN: dict[str, Any] = {
    "model": "default",
    "max_tokens": 4,
    "messages": [{"role": "user", "content": "Hello"}],
}
LONG_STREAM = TURN | {"max_tokens": 4000, "stream": True}
SLOWLY = ("--script-step-ms", "5")


@contextlib.contextmanager
def client_of(server: Serving) -> Iterator[httpx.Client]:
    headers = {"x-api-key": server.ready["key"]}
    with httpx.Client(base_url=server.url, headers=headers, timeout=COMMAND_LIMIT_S) as client:
        yield client


def attempts() -> Iterator[None]:
    deadline = time.monotonic() + COMMAND_LIMIT_S
    while time.monotonic() < deadline:
        yield
        time.sleep(0.02)  # another process gives no signal to wait on


def processes_of(pid: int, command: str) -> list[psutil.Process]:
    """Its living children that are this command of ours."""
    found = []
    for child in psutil.Process(pid).children():
        with contextlib.suppress(psutil.Error):
            if command in child.cmdline() and child.status() != psutil.STATUS_ZOMBIE:
                found.append(child)
    return found


def wait_for_process(pid: int, command: str, *, other_than: int | None = None) -> psutil.Process:
    """The one that lives now; waits where there is none."""
    for _ in attempts():
        for child in processes_of(pid, command):
            if child.pid != other_than:
                return child
    raise AssertionError(f"no {command}")


def front_of(server: Serving) -> psutil.Process:
    return wait_for_process(server.process.pid, "backend")


def host_cache_of(server: Serving, *, other_than: int | None = None) -> psutil.Process:
    return wait_for_process(server.process.pid, "hostcache", other_than=other_than)


def until_ready(client: httpx.Client) -> list[dict[str, Any]]:
    """Wait until it serves; what it said meanwhile."""
    said: list[dict[str, Any]] = []
    for _ in attempts():
        answer = client.get("/readyz")
        if answer.status_code == 200:
            return said
        said.append(answer.json())
    raise AssertionError(said)


def until_lost(client: httpx.Client) -> None:
    for _ in attempts():
        if client.get("/readyz").status_code != 200:
            return
    raise AssertionError("it still serves")


def until_logged(server: Serving, words: str, times: int = 1) -> None:
    for _ in attempts():
        if server.log.read_text().count(words) >= times:
            return
    raise AssertionError(server.log.read_text())


def read_until(lines: Iterator[str], words: str) -> None:
    assert any(words in line for line in lines)


@contextlib.contextmanager
def whole_family(server: Serving) -> Iterator[None]:
    """Ends the server; nothing that lived before is left."""
    yield
    family = psutil.Process(server.process.pid).children(recursive=True)
    server.process.terminate()
    assert server.process.wait(COMMAND_LIMIT_S) == 0
    _gone, alive = psutil.wait_procs(family, timeout=COMMAND_LIMIT_S)
    assert not alive
    assert "Traceback" not in server.log.read_text()
