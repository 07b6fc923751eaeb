"""The owner of host memory below `keepwarm serve`: it outlives the backend, and its own death costs no
stream. Real processes, made-up tokens, no torch."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil

from tests.cli.command import COMMAND_LIMIT_S, serving
from tests.cli.serving_processes import (
    LONG_STREAM,
    SLOWLY,
    TURN,
    client_of,
    front_of,
    host_cache_of,
    processes_of,
    read_until,
    until_logged,
    until_lost,
    until_ready,
    whole_family,
)


def test_it_outlives_the_front(tmp_path: Path) -> None:
    with serving(tmp_path) as server, client_of(server) as client, whole_family(server):
        host_cache = host_cache_of(server)
        for _ in range(2):
            front_of(server).kill()
            until_lost(client)
            until_ready(client)
        assert host_cache_of(server).pid == host_cache.pid
        assert client.post("/v1/messages", json=TURN).status_code == 200


def test_its_death_ends_no_stream_and_another_is_started(tmp_path: Path) -> None:
    with serving(tmp_path, *SLOWLY) as server, client_of(server) as client, whole_family(server):
        front, host_cache = front_of(server), host_cache_of(server)
        with client.stream("POST", "/v1/messages", json=LONG_STREAM | {"max_tokens": 600}) as answer:
            lines = answer.iter_lines()
            read_until(lines, "content_block_delta")
            host_cache.kill()
            rest = list(lines)
        assert "event: message_stop" in rest
        assert host_cache_of(server, other_than=host_cache.pid).is_running()
        until_logged(server, "host cache lost (killed by SIGKILL")
        assert "what it held is lost" in server.log.read_text()
        assert front_of(server).pid == front.pid


def test_a_backend_that_dies_with_it_waits_for_the_next_one(tmp_path: Path) -> None:
    with serving(tmp_path) as server, client_of(server) as client, whole_family(server):
        host_cache = host_cache_of(server)
        host_cache.kill()
        front_of(server).kill()
        until_lost(client)
        until_ready(client)
        assert host_cache_of(server).pid != host_cache.pid


def test_one_that_dies_again_and_again_is_left_and_serving_goes_on(tmp_path: Path) -> None:
    with serving(tmp_path, "--max-crashes", "2") as server, client_of(server) as client, whole_family(server):
        first = host_cache_of(server)
        first.kill()
        until_logged(server, "the host cache serves again")
        host_cache_of(server, other_than=first.pid).kill()
        until_logged(server, "the host cache was lost 2 times within 600 s and is left stopped")
        assert client.get("/healthz").json() == {"status": "ok"}
        assert client.post("/v1/messages", json=TURN).status_code == 200
        front_of(server).kill()  # and the next backend starts without it
        until_lost(client)
        until_ready(client)
        assert client.post("/v1/messages", json=TURN).status_code == 200
        assert not processes_of(server.process.pid, "hostcache")


def test_none_is_started_where_none_is_wanted(tmp_path: Path) -> None:
    with serving(tmp_path, "--host-cache-gb", "0") as server, whole_family(server):
        assert front_of(server).is_running()
        assert not processes_of(server.process.pid, "hostcache")


def test_a_killed_server_takes_it_along(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        host_cache_of(server)
        family = psutil.Process(server.process.pid).children(recursive=True)
        os.kill(server.process.pid, signal.SIGKILL)
        _gone, alive = psutil.wait_procs(family, timeout=COMMAND_LIMIT_S)
        assert not alive
