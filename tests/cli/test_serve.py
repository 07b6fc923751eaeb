"""`keepwarm serve` from outside: what it writes, how it refuses, how it ends. Made-up tokens, no torch."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.cli.command import COMMAND_LIMIT_S, Serving, read_document, run, serving, start

HELLO = {"model": "default", "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("serve")) as server:
        yield server


def ask(url: str, key: str) -> httpx.Response:
    return httpx.post(f"{url}/v1/messages", json=HELLO, headers={"x-api-key": key}, timeout=COMMAND_LIMIT_S)


def data_dir(server: Serving) -> Path:
    return server.log.parent / "data"


def test_the_document_says_what_a_script_needs(server: Serving) -> None:
    assert server.ready.keys() == {"url", "key", "model", "max_context_tokens", "pid"}
    assert server.ready["pid"] == server.process.pid
    assert server.ready["max_context_tokens"] == 8192
    assert server.ready["model"] == "scripted"


def test_it_answers_with_the_first_key(server: Serving) -> None:
    answer = ask(server.url, server.ready["key"])

    assert answer.status_code == 200
    assert 0 < answer.json()["usage"]["output_tokens"] <= 4


def test_the_log_shows_key_cache_and_environment_for_people(server: Serving) -> None:
    log = server.log.read_text()

    assert server.ready["key"] in log
    assert "another: keepwarm keys create" in log
    assert "blocks of 16 = " in log
    assert f"export ANTHROPIC_BASE_URL={server.url}" in log
    assert "export CLAUDE_CODE_MAX_CONTEXT_TOKENS=8192" in log
    assert "too small for Claude Code" in log


def test_polls_and_the_http_servers_own_starts_are_not_logged(tmp_path: Path) -> None:
    with serving(tmp_path, "--log-level", "debug") as server:
        assert ask(server.url, server.ready["key"]).status_code == 200

    log = server.log.read_text()
    assert "keepwarm.gateway.requests" in log
    for chatty in ("httpx", "httpcore", "uvicorn", "/ready"):
        assert chatty not in log


def test_keys_are_stored_hashed_for_their_owner_only(server: Serving) -> None:
    keys = data_dir(server) / "keys.json"

    assert server.ready["key"] not in keys.read_text()
    assert stat.S_IMODE(keys.stat().st_mode) == 0o600


def test_a_running_server_takes_new_keys_and_refuses_revoked_ones(server: Serving) -> None:
    folder = str(data_dir(server))
    made = run("keys", "create", "--label", "second", "--data-dir", folder)
    secret = made.stdout.strip()
    key_id = made.stderr.split()[1]
    assert ask(server.url, secret).status_code == 200

    assert run("keys", "revoke", key_id, "--data-dir", folder).returncode == 0

    assert ask(server.url, secret).status_code == 401
    listed = run("keys", "list", "--data-dir", folder).stdout
    assert secret not in listed
    assert "second" in listed
    assert "revoked" in listed


def test_a_taken_port_is_refused_before_anything_is_loaded(server: Serving, tmp_path: Path) -> None:
    port = server.url.rsplit(":", 1)[1]

    refused = run("serve", "--port", port, "--engine", "scripted", "--data-dir", str(tmp_path))

    assert refused.returncode == 2
    assert f"keepwarm: error: --port {port} on 127.0.0.1 is in use" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_later_starts_show_no_key_and_the_old_one_works(tmp_path: Path) -> None:
    with serving(tmp_path) as first:
        key = first.ready["key"]
    with serving(tmp_path) as second:
        assert second.ready["key"] is None
        assert ask(second.url, key).status_code == 200
        assert "another: keepwarm keys create" in second.log.read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_status_0_and_nothing_left_behind(
    tmp_path: Path, number: signal.Signals
) -> None:
    with serving(tmp_path) as server:
        family = [psutil.Process(server.process.pid)]
        family += family[0].children(recursive=True)
        server.process.send_signal(number)

        assert server.process.wait(COMMAND_LIMIT_S) == 0
        _gone, alive = psutil.wait_procs(family, timeout=COMMAND_LIMIT_S)
        assert not alive
    assert "Traceback" not in server.log.read_text()


def test_a_signal_while_loading_ends_it(tmp_path: Path) -> None:
    with start(tmp_path) as (process, log):
        wait_for_line(log, "starting", process.pid)
        process.terminate()

        assert process.wait(COMMAND_LIMIT_S) == 0
    assert "Traceback" not in log.read_text()


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    refused = run("serve", "--model", str(tmp_path / "nothing"), "--data-dir", str(tmp_path))

    assert refused.returncode == 2
    assert refused.stderr.splitlines()[-1] == (
        f"keepwarm: error: --model {tmp_path / 'nothing'}: no such file or folder"
    )


def test_too_little_memory_says_which_setting_to_change(tmp_path: Path) -> None:
    refused = run(
        *("serve", "--engine", "scripted", "--port", "0", "--data-dir", str(tmp_path)),
        *("--device-cache-gb", "0.000001"),
    )

    assert refused.returncode == 2
    assert "--device-cache-gb" in refused.stderr.splitlines()[-1]
    assert "Traceback" not in refused.stderr


def test_a_misspelt_variable_is_refused(tmp_path: Path) -> None:
    refused = run("serve", "--data-dir", str(tmp_path), more={"KEEPWARM_MAX_MODELLEN": "4096"})

    assert refused.returncode == 2
    assert (
        "KEEPWARM_MAX_MODELLEN='4096' is no setting; did you mean KEEPWARM_MAX_MODEL_LEN?" in refused.stderr
    )


def test_a_data_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    refused = run("serve", "--engine", "scripted", "--data-dir", str(tmp_path / "file"))

    assert refused.returncode == 2
    assert refused.stderr.splitlines()[-1].startswith(f"keepwarm: error: --data-dir {tmp_path / 'file'}: ")


def test_two_sizes_for_one_cache_are_refused() -> None:
    refused = run("serve", "--device-cache-gb", "1", "--gpu-memory-utilization", "0.5")

    assert refused.returncode == 2
    assert "both size the cache" in refused.stderr


def test_the_environment_sets_what_flags_do_not(tmp_path: Path) -> None:
    with serving(
        tmp_path, more={"KEEPWARM_SERVED_MODEL_NAME": "named", "KEEPWARM_MAX_MODEL_LEN": "2048"}
    ) as server:
        assert server.ready["model"] == "named"
        assert server.ready["max_context_tokens"] == 2048


def test_names_are_the_settings(tmp_path: Path) -> None:
    with serving(tmp_path, "--no-default-aliases", "--alias", "gpt-*", "--no-strip-attribution") as server:
        key = {"x-api-key": server.ready["key"]}
        statuses = {
            model: httpx.get(f"{server.url}/v1/models/{model}", headers=key).status_code
            for model in ("scripted", "gpt-9", "haiku", "default")
        }
    assert statuses == {"scripted": 200, "gpt-9": 200, "haiku": 404, "default": 404}


def test_the_backend_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    with start(tmp_path) as (process, log):
        read_document(process, log)
        children = psutil.Process(process.pid).children(recursive=True)
        os.kill(process.pid, signal.SIGKILL)

        _gone, alive = psutil.wait_procs(children, timeout=COMMAND_LIMIT_S)
        assert not alive


def test_port_0_gives_two_servers_two_ports(server: Serving, tmp_path: Path) -> None:
    with serving(tmp_path) as other:
        assert other.url != server.url


def wait_for_line(log: Path, words: str, pid: int) -> None:
    """Until a line of the log holds `words`; fails when the process ends first."""
    process = psutil.Process(pid)
    while words not in log.read_text():
        assert process.is_running(), log.read_text()
        assert process.status() != psutil.STATUS_ZOMBIE, log.read_text()
