"""Clients that leave, bad input, a dying engine: the server stays and loses nothing."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.served import Served, eventually, serve

pytestmark = pytest.mark.engine
LONG = "word " * 3_000


def messages_body(served: Served, content: str, **options: Any) -> dict[str, Any]:
    return {
        "model": served.model,
        "max_tokens": 16,
        "messages": [{"role": "user", "content": content}],
        **options,
    }


def test_a_client_that_leaves_mid_stream_stops_its_work(served: Served) -> None:
    body = messages_body(served, "Tell me a very long story.", max_tokens=4_000, stream=True)
    with served.client() as client, client.stream("POST", "/v1/messages", json=body) as response:
        for line in response.iter_lines():
            if line == "event: content_block_delta":
                break
    eventually(lambda: served.held_blocks() == 0)
    assert served.metric("keepwarm_requests_running") == 0


def test_a_client_that_leaves_while_its_prompt_is_read_stops_its_work(served: Served) -> None:
    computed = served.metric("keepwarm_computed_tokens_total")
    body = messages_body(served, "First of all: " + LONG, stream=True)
    with served.client() as client, client.stream("POST", "/v1/messages", json=body) as response:
        assert response.status_code == 200
        eventually(lambda: served.metric("keepwarm_requests_running") == 1)
    eventually(lambda: served.held_blocks() == 0)
    assert served.metric("keepwarm_computed_tokens_total") - computed < 3_000


def test_a_prompt_over_the_context_is_refused_in_the_words_clients_compact_on(served: Served) -> None:
    with served.client() as client:
        refused = client.post("/v1/messages", json=messages_body(served, LONG * 4))
        other = client.post("/v1/chat/completions", json=messages_body(served, LONG * 4))
    assert refused.status_code == other.status_code == 400
    message = refused.json()["error"]["message"]
    assert message.startswith("prompt is too long: ")
    assert message.endswith(f" tokens > {served.max_context_tokens} maximum")
    assert "prompt is too long" in other.json()["error"]["message"]


def test_max_tokens_beyond_the_room_is_clamped(served: Served) -> None:
    body = messages_body(served, "Reply with one word.", max_tokens=10_000_000, stop_sequences=["e", "a"])
    with served.client() as client:
        assert client.post("/v1/messages", json=body).status_code == 200


def test_a_missing_and_a_wrong_key_are_refused(served: Served) -> None:
    body = messages_body(served, "Hello")
    missing = httpx.post(f"{served.url}/v1/messages", json=body)
    wrong = httpx.post(f"{served.url}/v1/messages", json=body, headers={"x-api-key": "sk-wrong"})
    bearer = httpx.post(
        f"{served.url}/v1/messages",
        json=body,
        headers={"authorization": f"Bearer {served.key}"},
        timeout=60,
    )
    assert [missing.status_code, wrong.status_code, bearer.status_code] == [401, 401, 200]
    assert missing.json()["error"]["type"] == "authentication_error"


def test_an_unknown_model_is_named(served: Served) -> None:
    with served.client() as client:
        response = client.post("/v1/messages", json=messages_body(served, "Hello") | {"model": "gpt-9"})
    assert response.status_code == 404
    assert "gpt-9" in response.json()["error"]["message"]


def test_health_needs_no_key_and_models_are_listed(served: Served) -> None:
    assert httpx.get(f"{served.url}/healthz").status_code == 200
    assert httpx.get(f"{served.url}/readyz").status_code == 200
    with served.client() as client:
        ids = [model["id"] for model in client.get("/v1/models").json()["data"]]
    assert set(ids) >= {served.model, "default"}


def test_a_killed_engine_ends_its_streams_once_and_comes_back(tmp_path: Path) -> None:
    with serve(tmp_path, "--device-cache-gb", "0.5") as server:
        body = messages_body(server, "Tell me a very long story.", max_tokens=4_000, stream=True)
        with server.client() as client, client.stream("POST", "/v1/messages", json=body) as response:
            lines: list[str] = []
            for line in response.iter_lines():
                lines.append(line)
                if line == "event: content_block_delta" and lines.count(line) == 3:
                    os.kill(server.rank_pid(), signal.SIGKILL)
        assert lines.count("event: error") == 1
        assert "event: message_stop" not in lines
        error = json.loads(lines[lines.index("event: error") + 1].removeprefix("data: "))
        assert error["type"] == "error"
        eventually(lambda: httpx.get(f"{server.url}/readyz").status_code == 200, limit_s=60)
        with server.client() as client:
            assert client.post("/v1/messages", json=messages_body(server, "Back?")).status_code == 200
