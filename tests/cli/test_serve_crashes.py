"""`keepwarm serve` whose backend dies: what clients hear, how it comes back, and when it does not.
Real processes, made-up tokens, no torch."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cli.command import COMMAND_LIMIT_S, serving, start
from tests.cli.serving_processes import (
    LONG_STREAM,
    SLOWLY,
    TURN,
    attempts,
    client_of,
    front_of,
    read_until,
    until_lost,
    until_ready,
    wait_for_process,
    whole_family,
)

RETRYABLE = {"/v1/messages": 529, "/v1/chat/completions": 503, "/v1/responses": 503}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/messages": TURN,
    "/v1/chat/completions": TURN,
    "/v1/responses": {"model": "default", "input": "Hello", "max_output_tokens": 4},
}


def test_a_killed_front_ends_each_stream_once_and_comes_back(tmp_path: Path) -> None:
    with serving(tmp_path, *SLOWLY) as server, client_of(server) as client, whole_family(server):
        front = front_of(server)
        family = [front, *front.children(recursive=True)]
        with (
            client.stream("POST", "/v1/messages", json=LONG_STREAM) as one,
            client.stream("POST", "/v1/chat/completions", json=LONG_STREAM) as other,
        ):
            one_lines, other_lines = one.iter_lines(), other.iter_lines()
            read_until(one_lines, "content_block_delta")
            read_until(other_lines, '"content":')
            front.kill()
            one_rest, other_rest = list(one_lines), list(other_lines)
        assert one_rest.count("event: error") == 1
        assert "event: message_stop" not in one_rest
        errors = [line for line in other_rest if '"error":' in line]
        assert len(errors) == 1
        assert "went away" in json.loads(errors[0].removeprefix("data: "))["error"]["message"]

        until_ready(client)
        assert front_of(server).pid != front.pid
        _gone, alive = psutil.wait_procs(family, timeout=COMMAND_LIMIT_S)
        assert not alive
        for path, body in BODIES.items():
            assert client.post(path, json=body).status_code == 200


@pytest.mark.parametrize("path", list(BODIES))
def test_requests_meanwhile_are_told_to_come_back(tmp_path: Path, path: str) -> None:
    with serving(tmp_path) as server, client_of(server) as client, whole_family(server):
        assert client.post(path, json=BODIES[path]).status_code == 200
        front_of(server).kill()
        until_lost(client)
        refused = []
        for _ in attempts():
            answer = client.post(path, json=BODIES[path])
            if answer.status_code == 200:
                break
            refused.append(answer)
        assert refused
        assert {answer.status_code for answer in refused} == {RETRYABLE[path]}
        assert all(1 <= int(answer.headers["retry-after"]) <= 55 for answer in refused)
        assert any("lost (killed by SIGKILL" in answer.text for answer in refused)


def test_a_front_killed_while_it_loads_is_started_again(tmp_path: Path) -> None:
    with serving(tmp_path) as server, client_of(server) as client, whole_family(server):
        for _ in range(2):  # the second one is killed before it is ready
            front_of(server).kill()
            until_lost(client)
        said = until_ready(client)
        assert {each["status"] for each in said} <= {"not ready"}
        assert client.post("/v1/messages", json=TURN).status_code == 200


def test_one_that_is_killed_again_and_again_is_left_stopped_and_says_so(tmp_path: Path) -> None:
    with (
        serving(tmp_path, "--max-crashes", "3") as server,
        client_of(server) as client,
        whole_family(server),
    ):
        assert client.get("/healthz").json() == {"status": "ok"}
        for number in range(3):
            front_of(server).kill()
            until_lost(client)
            if number < 2:
                until_ready(client)
        for _ in attempts():
            health = client.get("/healthz")
            if health.json()["status"] != "ok":
                break
        assert health.status_code == 200
        reason = health.json()["reason"]
        assert health.json()["status"] == "degraded"
        assert "lost 3 times within 600 s" in reason
        assert "killed by SIGKILL" in reason
        ready = client.get("/readyz")
        assert (ready.status_code, ready.json()) == (503, {"status": "degraded", "reason": reason})
        for path, body in BODIES.items():
            refused = client.post(path, json=body)
            assert refused.status_code == 503
            assert refused.json()["error"]["message"] == reason
            assert refused.headers["x-should-retry"] == "false"
            assert "retry-after" not in refused.headers
        left = psutil.Process(server.process.pid).children(recursive=True)
        assert not [child for child in left if "hostcache" not in child.cmdline()]


def test_a_start_that_a_setting_forbids_is_not_tried_again(tmp_path: Path) -> None:
    with serving(tmp_path) as server, client_of(server) as client, whole_family(server):
        [key] = (tmp_path / "data").glob("*cache*key*")
        key.write_bytes(b"short")
        front_of(server).kill()
        until_lost(client)
        for _ in attempts():
            health = client.get("/healthz").json()
            if health["status"] != "ok":
                break
        assert health["status"] == "degraded"
        assert "cannot be started again" in health["reason"]
        assert str(key) in health["reason"]


def test_a_front_killed_in_its_first_start_fails_it(tmp_path: Path) -> None:
    with start(tmp_path) as (process, log):
        front = wait_for_process(process.pid, "backend")
        front.kill()
        assert process.wait(COMMAND_LIMIT_S) == 2
    assert "ended while starting (killed by SIGKILL" in log.read_text()


def test_a_server_that_is_stopped_while_its_backend_is_away_ends_at_once(tmp_path: Path) -> None:
    with serving(tmp_path) as server, client_of(server) as client, whole_family(server):
        front_of(server).kill()
        until_lost(client)


def test_a_killed_server_takes_a_restarted_front_with_it(tmp_path: Path) -> None:
    with serving(tmp_path) as server, client_of(server) as client:
        front_of(server).kill()
        until_lost(client)
        until_ready(client)
        family = psutil.Process(server.process.pid).children(recursive=True)
        os.kill(server.process.pid, signal.SIGKILL)
        _gone, alive = psutil.wait_procs(family, timeout=COMMAND_LIMIT_S)
        assert not alive
