"""`keepwarm serve --ranks 2` from outside: one rank is killed, and nobody who asks afterwards notices."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.cli.command import COMMAND_LIMIT_S, Serving, run, serving

HELLO = {"model": "default", "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]}
LONG = {
    "model": "default",
    "max_tokens": 8_000,
    "messages": [{"role": "user", "content": "b"}],
    "stream": True,
}
"""To which the made-up answer has no end."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("ranks"), "--ranks", "2", "--script-step-ms", "20") as server:
        yield server


def test_both_ranks_log_what_they_hold_and_their_caches_are_one(server: Serving) -> None:
    log = server.log.read_text()
    assert "rank 0: L0: 4,096 blocks" in log
    assert "rank 1: L0: 4,096 blocks" in log
    assert "cache   8,192 blocks of 16 = 131,072 tokens" in log
    assert len(rank_pids(server)) == 2


def test_a_killed_rank_ends_its_own_stream_with_one_error_and_the_other_goes_on(server: Serving) -> None:
    with client(server) as asking, asking.stream("POST", "/v1/messages", json=named(LONG, "ann")) as first:
        lines = first.iter_lines()
        read_until(lines, "event: content_block_delta")
        with asking.stream("POST", "/v1/messages", json=named(LONG, "ben")) as second:
            others = second.iter_lines()
            read_until(others, "event: content_block_delta")
            os.kill(rank_pids(server)[1], signal.SIGKILL)
            rest = [line for line in others if line.startswith("event: ")]
            assert rest.count("event: error") == 1
            assert "event: message_stop" not in rest
        assert asking.post("/v1/messages", json=named(HELLO, "ben")).status_code == 200
        for _ in range(5):
            read_until(lines, "event: content_block_delta")
    eventually(lambda: len(rank_pids(server)) == 2)
    with client(server) as asking:
        assert asking.post("/v1/messages", json=named(HELLO, "ben")).status_code == 200


def test_no_ranks_are_refused(tmp_path: Path) -> None:
    refused = run("serve", "--ranks", "0", "--data-dir", str(tmp_path))
    assert refused.returncode == 2
    assert "--ranks" in refused.stderr


def named(body: dict[str, object], session: str) -> dict[str, object]:
    return body | {"metadata": {"user_id": f"user_x_account__session_{session}"}}


def client(server: Serving) -> httpx.Client:
    headers = {"x-api-key": server.ready["key"]}
    return httpx.Client(base_url=server.url, headers=headers, timeout=COMMAND_LIMIT_S)


def rank_pids(server: Serving) -> list[int]:
    """In the order of their start, which is that of their numbers."""
    children = psutil.Process(server.process.pid).children(recursive=True)
    ranks = [child for child in children if "keepwarm.backend.rank_main" in child.cmdline()]
    return [child.pid for child in sorted(ranks, key=lambda child: child.pid)]


def read_until(lines: Iterator[str], wanted: str) -> None:
    for line in lines:
        if line == wanted:
            return
    raise AssertionError(f"the stream ended before {wanted!r}")


def eventually(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + COMMAND_LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)  # another process gives no signal to wait on
