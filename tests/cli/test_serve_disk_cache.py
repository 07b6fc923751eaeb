"""`keepwarm serve --disk-cache-gb`: a restart of the whole service finds its conversations. Real
processes, made-up tokens, no torch."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest

from keepwarm.backend.disk_budget import look_up
from tests.cli.command import COMMAND_LIMIT_S, Serving, run, serving
from tests.cli.serving_processes import until_logged, whole_family

OPTIONS = ("--host-cache-gb", "0.1", "--disk-cache-gb", "0.2", "--max-model-len", "20000")
TURN: dict[str, Any] = {
    "model": "default",
    "max_tokens": 4,
    "messages": [{"role": "user", "content": "Keep this in mind. " * 200}],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """On a disk."""
    if (refusal := look_up(tmp_path).refusal()) is not None:
        pytest.skip(f"{tmp_path} lies on {refusal}")
    return tmp_path


def cached_by_tier(server: Serving, key: str) -> dict[str, int]:
    """Ask one turn; where its cached tokens were found."""
    headers = {"x-api-key": key}
    answer = httpx.post(server.url + "/v1/messages", json=TURN, headers=headers, timeout=COMMAND_LIMIT_S)
    assert answer.status_code == 200
    tiers = answer.headers["x-keepwarm-cached-tokens"]
    return {name: int(count) for name, count in re.findall(r"(\w+)=(\d+)", tiers)}


def test_a_restart_of_the_whole_service_finds_its_conversations(folder: Path) -> None:
    with serving(folder, *OPTIONS) as server, whole_family(server):
        key = server.ready["key"]
        assert cached_by_tier(server, key) == {"l0": 0, "l1": 0, "disk": 0}
        in_memory = cached_by_tier(server, key)
        assert in_memory["l0"] > 3000
    with serving(folder, *OPTIONS) as server, whole_family(server):
        assert cached_by_tier(server, key) == {"l0": 0, "l1": 0, "disk": in_memory["l0"]}
        assert cached_by_tier(server, key) == in_memory
    files = sorted(file.name for file in (folder / "data" / "disk-cache").iterdir())
    assert files[:2] == ["lock", "records"]
    assert all(re.fullmatch(r"segment-[0-9a-f]{16}\.kv", name) for name in files[2:])


def test_another_model_finds_nothing(folder: Path) -> None:
    with serving(folder, *OPTIONS) as server, whole_family(server):
        key = server.ready["key"]
        cached_by_tier(server, key)
    with serving(folder, *OPTIONS, "--block-size", "32") as server, whole_family(server):
        assert cached_by_tier(server, key) == {"l0": 0, "l1": 0, "disk": 0}
        until_logged(server, "is not used: its blocks are of 16 tokens")


def test_a_second_server_on_the_same_data_goes_without(folder: Path) -> None:
    other = folder / "other"
    other.mkdir()
    (other / "data").symlink_to(folder / "data")
    with serving(folder, *OPTIONS) as server, whole_family(server):
        key = server.ready["key"]
        with serving(other, *OPTIONS) as second, whole_family(second):
            assert cached_by_tier(second, key)["l0"] == 0
            until_logged(second, "another process uses this folder; give another --data-dir")
            assert cached_by_tier(second, key)["l0"] > 3000
        assert cached_by_tier(server, key)["l0"] == 0


def test_a_folder_in_memory_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    shared_memory = Path("/dev/shm")
    if not shared_memory.is_dir() or look_up(shared_memory).refusal() is None:
        pytest.skip("there is no shared memory here")
    data = shared_memory / f"keepwarm-test-{os.getpid()}"
    try:
        ended = run(
            *("serve", "--engine", "scripted", "--port", "0", "--data-dir", str(data), *OPTIONS),
            limit_s=COMMAND_LIMIT_S,
        )
    finally:
        shutil.rmtree(data)
    assert ended.returncode == 2
    last_line = ended.stderr.splitlines()[-1]
    assert f"--disk-cache-gb 0.2: {data}/disk-cache lies on /dev/shm, which is tmpfs" in last_line
    assert f"stat -f {data}/disk-cache" in last_line
