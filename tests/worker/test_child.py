"""A backend child as its parent sees it: real processes, a real socket, the scripted engine."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from keepwarm.core.errors import SetupError
from keepwarm.worker.child import BACKEND_COMMAND, BackendChild, ask_why_not_ready

PATIENCE_S = 30.0


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "model_path": "/no/model",
        "model_name": "scripted",
        "socket_path": str(folder / "b.sock"),
        "data_dir": str(folder),
        "engine": "scripted",
    }
    return values | changes


def family_of(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


@pytest.fixture
async def child(tmp_path: Path) -> AsyncIterator[BackendChild]:
    made = BackendChild(settings(tmp_path))
    await made.start()
    await made.wait_until_ready(PATIENCE_S)
    family = family_of(made.pid)
    yield made
    await made.stop(PATIENCE_S)
    _gone, alive = psutil.wait_procs(family, timeout=PATIENCE_S)
    assert not alive
    assert not (tmp_path / "b.sock").exists()


async def test_a_started_child_says_what_it_serves(child: BackendChild) -> None:
    described = await child.wait_until_ready(PATIENCE_S)
    assert described["model"] == "scripted"
    assert described["max_model_len"] == 8192
    assert await ask_why_not_ready(child.socket_path) is None


async def test_its_socket_belongs_to_its_owner_alone(child: BackendChild) -> None:
    assert os.stat(child.socket_path).st_mode & 0o777 == 0o600


async def test_a_stop_ends_it_with_status_0(child: BackendChild) -> None:
    assert await child.stop(PATIENCE_S) == 0


async def test_a_lost_rank_is_said_and_started_again(child: BackendChild) -> None:
    rank = family_of(child.pid)[1]
    rank.send_signal(signal.SIGKILL)
    reasons: set[str | None] = set()
    async with asyncio.timeout(PATIENCE_S):
        while None not in reasons or len(reasons) < 2:
            reasons.add(await ask_why_not_ready(child.socket_path))
            await asyncio.sleep(0.01)
    assert any("killed by SIGKILL" in reason or "lost" in reason for reason in reasons if reason)


async def test_why_it_could_not_start_is_one_sentence(tmp_path: Path) -> None:
    child = BackendChild(settings(tmp_path, device_cache_gb=0.0001))
    await child.start()
    with pytest.raises(SetupError, match="raise it or lower --max-model-len") as raised:
        await child.wait_until_ready(PATIENCE_S)
    assert "\n" not in str(raised.value)


async def test_a_crash_while_starting_quotes_its_log(tmp_path: Path) -> None:
    command = (sys.executable, "-c", "import sys; print('half way'); sys.exit(7)")
    child = BackendChild(settings(tmp_path), command=command)
    await child.start()
    with pytest.raises(SetupError, match=r"exit status 7\); its last log lines:\n  half way"):
        await child.wait_until_ready(PATIENCE_S)


async def test_one_that_is_never_ready_is_stopped(tmp_path: Path) -> None:
    child = BackendChild(settings(tmp_path), command=("sleep", "60"))
    await child.start()
    pid = child.pid
    with pytest.raises(SetupError, match=r"not ready within 0\.2 s"):
        await child.wait_until_ready(0.2)
    assert not psutil.pid_exists(pid)


def test_the_parent_s_death_ends_the_child_and_its_rank(tmp_path: Path) -> None:
    process = subprocess.Popen(BACKEND_COMMAND, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=False)
    assert process.stdin is not None
    assert process.stderr is not None
    process.stdin.write(msgspec.json.encode(settings(tmp_path)) + b"\n")
    process.stdin.flush()
    for line in process.stderr:
        if b"L0: " in line:
            break
    family = family_of(process.pid)
    assert len(family) == 2
    process.stdin.close()  # what the kernel does when the parent dies
    assert process.wait(PATIENCE_S) == 0
    _gone, alive = psutil.wait_procs(family[1:], timeout=PATIENCE_S)
    assert not alive
    process.stderr.close()


async def test_a_killed_front_leaves_no_rank(tmp_path: Path) -> None:
    child = BackendChild(settings(tmp_path))
    await child.start()
    await child.wait_until_ready(PATIENCE_S)
    family = family_of(child.pid)
    os.kill(child.pid, signal.SIGKILL)
    assert await child.wait() == -signal.SIGKILL
    _gone, alive = psutil.wait_procs(family[1:], timeout=PATIENCE_S)
    assert not alive
    await child.stop(0.0)
