"""Everything around a turn: keys, models, limits, health, metrics, the log, unknown routes."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from keepwarm.chat.events import ChatEvent
from keepwarm.chat.request import ChatRequest
from keepwarm.core.errors import Degraded, InvariantBroken, NotReady
from keepwarm.gateway.app import build_app
from keepwarm.gateway.directory import StaticDirectory
from keepwarm.gateway.settings import GatewaySettings
from keepwarm.gateway.turns import Turns
from tests.dialects.answers import said
from tests.gateway.doors import KEY, LIMIT_S, OTHER_KEY, KnownKeys, on_loopback, without_socket
from tests.gateway.scripted_replica import ScriptedReplica

BODY: dict[str, Any] = {
    "model": "smol",
    "max_tokens": 16,
    "messages": [{"role": "user", "content": "a private question"}],
}
MESSAGES, CHAT = "/v1/messages", "/v1/chat/completions"
DIALECTS = pytest.mark.parametrize("path", [MESSAGES, CHAT])


def script(_: ChatRequest) -> list[ChatEvent]:
    return said("a private answer")


# Keys


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"x-api-key": ""}, 401),
        ({"x-api-key": "wrong"}, 401),
        ({"authorization": f"Basic {KEY}"}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"x-api-key": KEY}, 200),
        ({"authorization": f"Bearer {KEY}"}, 200),
        ({"authorization": f"bearer {KEY}"}, 200),
        ({"x-api-key": "leftover", "authorization": f"Bearer {KEY}"}, 200),
        ({"x-api-key": KEY, "authorization": "Bearer leftover"}, 200),
        ({"x-api-key": KEY, "authorization": f"Bearer {KEY}"}, 200),
        ({"x-api-key": KEY, "authorization": f"Bearer {OTHER_KEY}"}, 401),
    ],
)
@DIALECTS
async def test_one_valid_key_lets_in(path: str, headers: dict[str, str], status: int) -> None:
    async with without_socket(ScriptedReplica(script)) as client:
        client.headers.pop("x-api-key")
        response = await client.post(path, json=BODY, headers=headers)
    assert response.status_code == status
    if status == 401:
        assert response.headers["x-should-retry"] == "false"  # or Claude Code tries ten times
        error = response.json()["error"]
        assert error["type"] == ("authentication_error" if path == MESSAGES else "invalid_request_error")


async def test_each_route_but_health_wants_a_key() -> None:
    async with without_socket(ScriptedReplica()) as client:
        client.headers.pop("x-api-key")
        statuses = {
            path: (await client.get(path)).status_code
            for path in ("/", "/healthz", "/readyz", "/metrics", "/v1/models", "/v1/models/smol")
        }
        counted = await client.post("/v1/messages/count_tokens", json=BODY)
    assert statuses == {
        "/": 200,
        "/healthz": 200,
        "/readyz": 200,
        "/metrics": 401,
        "/v1/models": 401,
        "/v1/models/smol": 401,
    }
    assert counted.status_code == 401


# What reaches the replica


async def test_a_turn_carries_its_owner_session_and_cache_wish() -> None:
    replica = ScriptedReplica(script)
    headers = {"x-claude-code-session-id": "s1", "x-keepwarm-cache": "bypass"}
    async with without_socket(replica) as client:
        await client.post(MESSAGES, json=BODY, headers=headers)
        await client.post(CHAT, json=BODY, headers={"x-session-id": "s2", "x-api-key": OTHER_KEY})
        await client.post(CHAT, json=BODY | {"prompt_cache_key": "s3"})
    first, second, third = [(await replica.next_answer()).request for _ in range(3)]
    assert (first.tenant, first.session, first.use_cache) == ("default", "s1", False)
    assert (second.tenant, second.session, second.use_cache) == ("other", "s2", True)
    assert third.session == "s3"
    assert len({first.request_id, second.request_id, third.request_id}) == 3


async def test_a_cache_wish_that_is_not_known_is_refused() -> None:
    """Its sender would compare a cached answer with a cached one."""
    replica = ScriptedReplica(script)
    async with without_socket(replica) as client:
        response = await client.post(MESSAGES, json=BODY, headers={"x-keepwarm-cache": "bypas"})
    assert response.status_code == 400
    assert "x-keepwarm-cache: must be 'bypass' or absent, got 'bypas'" in response.text


async def test_the_answer_names_its_request() -> None:
    replica = ScriptedReplica(script)
    async with without_socket(replica) as client:
        response = await client.post(MESSAGES, json=BODY)
    request_id = response.headers["request-id"]
    assert (await replica.next_answer()).request.request_id == request_id
    assert response.headers["x-request-id"] == request_id
    assert response.json()["id"] == request_id.replace("req_", "msg_")


# Bad input


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b'{"model": "smol"}', "messages: required"),
        (json.dumps(BODY | {"messages": []}).encode(), "messages: must hold at least one"),
        (json.dumps(BODY | {"temperature": 9}).encode(), "temperature: must be between"),
        (
            json.dumps(BODY | {"messages": [{"role": "robot", "content": "x"}]}).encode(),
            'messages.0.role: "robot" is not one of',
        ),
    ],
)
@DIALECTS
async def test_bad_input_is_a_400_in_the_dialects_shape(path: str, raw: bytes, said: str) -> None:
    async with without_socket(ScriptedReplica(script)) as client:
        response = await client.post(path, content=raw)
        assert (await client.post(path, json=BODY)).status_code == 200  # the server stays
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert said in response.json()["error"]["message"]
    assert ("request_id" in response.json()) == (path == MESSAGES)


@pytest.mark.parametrize("model", ["gpt-9", "smol ", "DEFAULT"])
async def test_an_unknown_model_is_a_404_that_names_the_served_ones(model: str) -> None:
    async with without_socket(ScriptedReplica(script)) as client:
        theirs = await client.post(MESSAGES, json=BODY | {"model": model})
        ours = await client.post(CHAT, json=BODY | {"model": model})
        listed = await client.get(f"/v1/models/{model}x")
    assert theirs.status_code == ours.status_code == listed.status_code == 404
    assert theirs.json()["error"]["type"] == "not_found_error"
    assert ours.json()["error"]["code"] == "model_not_found"
    assert model in theirs.json()["error"]["message"]
    assert "served: smol, default, haiku" in theirs.json()["error"]["message"]


@DIALECTS
async def test_a_body_over_the_limit_is_a_413_that_names_the_limit(path: str) -> None:
    body = BODY | {"padding": "x" * 20_000}
    async with without_socket(ScriptedReplica(script), max_body_mb=0.01) as client:
        response = await client.post(path, json=body)
        assert (await client.post(path, json=BODY)).status_code == 200
    assert response.status_code == 413
    assert "10000 bytes (--max-body-mb)" in response.json()["error"]["message"]


async def test_a_body_over_the_limit_is_refused_over_a_socket_too_with_and_without_a_length() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(60):
            yield b"x" * 10_000

    async with on_loopback(ScriptedReplica(script), max_body_mb=0.3) as door, door.client() as client:
        declared = await client.post(MESSAGES, content=b"x" * 600_000)
        undeclared = await client.post(MESSAGES, content=chunks())
        keyless = await client.post(MESSAGES, content=b"x" * 200_000, headers={"x-api-key": "wrong"})
        assert (await client.post(MESSAGES, json=BODY)).status_code == 200
    assert (declared.status_code, undeclared.status_code, keyless.status_code) == (413, 413, 401)
    assert declared.json()["error"]["type"] == "request_too_large"


async def test_a_body_that_stops_arriving_is_refused_after_a_while() -> None:
    head = f"POST {MESSAGES} HTTP/1.1\r\nhost: x\r\nx-api-key: {KEY}\r\ncontent-length: 100\r\n\r\n"
    async with on_loopback(ScriptedReplica(), body_wait_s=0.05) as door:
        url = httpx.URL(door.url)
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(head.encode() + b'{"model": ')
        answer = await asyncio.wait_for(reader.readuntil(b'"request_id"'), LIMIT_S)
        writer.close()
        await writer.wait_closed()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"stopped arriving for 0.05 s" in answer


async def test_routes_that_are_not_there_are_answered_in_json() -> None:
    async with without_socket(ScriptedReplica()) as client:
        theirs = await client.get("/v1/nothing", headers={"anthropic-version": "2023-06-01"})
        wrong_method = await client.get(MESSAGES)
        slashed = await client.post(MESSAGES + "/", json=BODY)
        head = await client.head("/api/hello")
        front = await client.head("/")
        broken = await client.get("/v1/models/a%0Ab", headers={"anthropic-version": "2023-06-01"})
        client.headers.pop("x-api-key")
        ours = await client.get("/v1/nothing")
    assert [r.status_code for r in (theirs, ours, wrong_method, slashed, head, broken)] == [404] * 6
    assert theirs.json()["error"]["type"] == "not_found_error"
    assert ours.json()["error"]["code"] == "not_found"
    assert "POST /v1/messages is" in wrong_method.json()["error"]["message"]
    assert broken.json()["error"]["type"] == "not_found_error"
    assert front.status_code == 200


# Models, health, metrics, log


async def test_the_served_name_is_listed_first_and_every_name_has_the_context() -> None:
    replica = ScriptedReplica()
    async with without_socket(replica) as client:
        listed = (await client.get("/v1/models?limit=1000")).json()
        replica.not_ready = NotReady("loading")
        unready = (await client.get("/v1/models")).json()
    names = [model["id"] for model in listed["data"]]
    assert names == ["smol", "claude-smol", "default", "haiku", "sonnet", "opus"]
    assert {model["display_name"] for model in listed["data"]} == {"smol"}
    assert {model["max_input_tokens"] for model in listed["data"]} == {8192}
    assert (listed["first_id"], listed["last_id"], listed["has_more"]) == ("smol", "opus", False)
    assert "max_input_tokens" not in unready["data"][0]


async def test_health_is_life_and_readiness_is_the_replicas() -> None:
    replica = ScriptedReplica()
    async with without_socket(replica) as client:
        ready = await client.get("/readyz")
        replica.trouble = "rank 1 is degraded"
        troubled = await client.get("/readyz")
        replica.not_ready = NotReady("the model is loading")
        unready = await client.get("/readyz")
        health = await client.get("/healthz")
    assert (ready.status_code, ready.json()["model"]) == (200, "smol")
    assert "reason" not in ready.json()
    assert (troubled.status_code, troubled.json()["reason"]) == (200, "rank 1 is degraded")
    assert (unready.status_code, unready.json()["reason"]) == (503, "the model is loading")
    assert health.status_code == 200


@pytest.mark.parametrize(
    ("trouble", "health", "status", "refused"),
    [
        (NotReady("it was lost"), {"status": "ok"}, "not ready", 529),
        (Degraded("left stopped"), {"status": "degraded", "reason": "left stopped"}, "degraded", 503),
    ],
)
async def test_trouble_of_the_replicas_process_is_told_without_asking_it(
    trouble: NotReady, health: dict[str, str], status: str, refused: int
) -> None:
    directory = StaticDirectory(ScriptedReplica(script), trouble=lambda: trouble)
    app = build_app(GatewaySettings(model_name="smol"), keys=KnownKeys(), replicas=directory)
    transport = httpx.ASGITransport(app=app)
    headers = {"x-api-key": KEY}
    async with httpx.AsyncClient(transport=transport, base_url="http://door", headers=headers) as client:
        assert (await client.get("/healthz")).json() == health
        ready = await client.get("/readyz")
        assert (ready.status_code, ready.json()) == (503, {"status": status, "reason": str(trouble)})
        for path in (MESSAGES, "/v1/messages/count_tokens"):
            answer = await client.post(path, json=BODY)
            assert answer.status_code == refused
            assert answer.json()["error"]["message"] == str(trouble)
            assert ("x-should-retry" in answer.headers) is isinstance(trouble, Degraded)
            assert ("retry-after" in answer.headers) is not isinstance(trouble, Degraded)


async def test_metrics_count_requests_tokens_and_unserved_fields() -> None:
    replica = ScriptedReplica(script)
    async with without_socket(replica) as client:
        await client.post(
            MESSAGES, json=BODY | {"model": "claude-x", "brand_new": 1, "thinking": {"type": "adaptive"}}
        )
        await client.post(MESSAGES, json=BODY | {"model": "gpt-9"})
        for number in range(150):
            await client.post(CHAT, json=BODY | {f"made_up_{number}": 1, "model": "gpt-9"})
        text = (await client.get("/metrics")).text
    assert 'keepwarm_gateway_requests_total{model="smol",outcome="ok",route="/v1/messages"} 1.0' in text
    assert 'keepwarm_gateway_requests_total{model="",outcome="not_found",route="/v1/messages"} 1.0' in text
    assert 'keepwarm_gateway_tokens_total{kind="cached",model="smol"} 80.0' in text
    assert 'keepwarm_gateway_tokens_total{kind="uncached",model="smol"} 20.0' in text
    assert 'keepwarm_gateway_tokens_total{kind="output",model="smol"} 5.0' in text
    assert 'keepwarm_gateway_first_token_seconds_count{route="/v1/messages"} 1.0' in text
    assert 'keepwarm_gateway_unserved_fields_total{dialect="anthropic",field="brand_new"} 1.0' in text
    assert 'field="other"} 51.0' in text
    assert text.count("keepwarm_gateway_unserved_fields_total{") == 101
    assert text.endswith("scripted_metric 1.0\n")


async def test_each_request_is_one_log_line_without_words_or_secrets(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    async with without_socket(ScriptedReplica(script)) as client:
        for stream in (False, True):
            await client.post(MESSAGES, json=BODY | {"stream": stream})
        await client.post(CHAT, json=BODY | {"model": "a private model"})
        await client.get("/nowhere")
    lines = [record for record in caplog.records if record.name == "keepwarm.gateway.requests"]
    fields = [record.__dict__["fields"] for record in lines]
    assert [field["outcome"] for field in fields] == ["ok", "ok", "not_found", "not_found"]
    assert [field["route"] for field in fields] == [MESSAGES, MESSAGES, CHAT, "other"]
    assert [field["stream"] for field in fields[:2]] == [False, True]
    for field in fields[:2]:
        assert (field["tenant"], field["key_id"], field["model"]) == ("default", "key_1", "smol")
        assert (field["prompt_tokens"], field["cached_tokens"], field["output_tokens"]) == (100, 80, 5)
        assert field["total_ms"] >= field["first_token_ms"] >= field["queue_ms"] >= 0
    logged = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("keepwarm"))
    assert "private" not in logged
    assert KEY not in logged


async def test_our_own_mistakes_are_logged_and_not_told(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: ChatRequest) -> list[ChatEvent]:
        raise InvariantBroken("the internals are wrong")

    def crashed(_: ChatRequest) -> list[ChatEvent]:
        raise ZeroDivisionError

    for failing, logged in ((broken, "the internals are wrong"), (crashed, "ZeroDivisionError")):
        async with without_socket(ScriptedReplica(failing)) as client:
            response = await client.post(MESSAGES, json=BODY)
        assert response.status_code == 500
        assert response.json()["error"]["type"] == "api_error"
        assert "internals" not in response.text
        assert logged in caplog.text
        assert response.headers["request-id"] in caplog.text


async def test_a_mistake_of_ours_after_the_answer_takes_nothing_from_the_client(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_well = Turns.answer

    async def broken(turns: Turns, *asked: Any, **how: Any) -> None:
        await answer_well(turns, *asked, **how)
        raise ZeroDivisionError

    monkeypatch.setattr(Turns, "answer", broken)
    async with on_loopback(ScriptedReplica(script)) as door, door.client() as client:
        for stream in (False, True, False):  # over one connection
            answer = await client.post(MESSAGES, json=BODY | {"stream": stream})
            assert answer.status_code == 200
    assert "ZeroDivisionError" in caplog.text
    assert "RuntimeError" not in caplog.text


@pytest.mark.parametrize(
    ("asked", "served"),
    [
        ("/v1/v1/messages", "/v1/messages"),
        ("/messages", "/v1/messages"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/chat/completions", "/v1/chat/completions"),
        ("/responses", "/v1/responses"),
    ],
)
async def test_a_base_url_with_too_much_or_too_little_of_v1_is_told_apart(asked: str, served: str) -> None:
    async with without_socket(ScriptedReplica(script)) as client:
        response = await client.post(asked, json=BODY)
    assert response.status_code == 404
    assert f"POST {asked} is not served; {served} is: check /v1 in the client's base URL" in response.text
