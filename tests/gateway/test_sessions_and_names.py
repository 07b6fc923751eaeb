"""What a request says of itself: its session and agent, and the model's name it asks for."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from keepwarm.chat.events import ChatEvent
from keepwarm.chat.request import ChatRequest
from keepwarm.core.session import NO_SESSION, SessionKey
from keepwarm.gateway.app import build_app
from keepwarm.gateway.ports import Replica
from keepwarm.gateway.settings import GatewaySettings
from tests.dialects.answers import said
from tests.gateway.doors import KEY, OTHER_KEY, KnownKeys, without_socket
from tests.gateway.scripted_replica import ScriptedReplica

BODY: dict[str, Any] = {
    "model": "smol",
    "max_tokens": 16,
    "messages": [{"role": "user", "content": "Hello"}],
}
MESSAGES, CHAT, COUNT = "/v1/messages", "/v1/chat/completions", "/v1/messages/count_tokens"


def script(_: ChatRequest) -> list[ChatEvent]:
    return said("Hello")


class NotingDirectory:
    """Notes for whom it was asked to choose."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self.chosen_for: list[SessionKey] = []

    def choose(self, session: SessionKey) -> Replica:
        self.chosen_for.append(session)
        return self._replica

    def replicas(self) -> Sequence[Replica]:
        return (self._replica,)

    def trouble(self) -> None:
        return None


async def chosen_for(path: str, *, body: dict[str, Any], headers: dict[str, str]) -> SessionKey:
    directory = NotingDirectory(ScriptedReplica(script))
    app = build_app(GatewaySettings(model_name="smol"), keys=KnownKeys(), replicas=directory)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://door") as client:
        response = await client.post(path, json=BODY | body, headers={"x-api-key": KEY} | headers)
    assert response.status_code == 200, response.text
    [key] = directory.chosen_for
    return key


# Sessions


@pytest.mark.parametrize(
    ("path", "headers", "body", "key"),
    [
        (MESSAGES, {}, {}, NO_SESSION),
        (MESSAGES, {"X-Claude-Code-Session-Id": "c"}, {}, SessionKey(session="c")),
        (CHAT, {"x-session-id": "o"}, {}, SessionKey(session="o")),
        (CHAT, {}, {"prompt_cache_key": "p"}, SessionKey(session="p")),
        (CHAT, {"x-session-id": "o"}, {"prompt_cache_key": "p"}, SessionKey(session="o")),
        (CHAT, {"x-session-id": " "}, {"prompt_cache_key": "p"}, SessionKey(session="p")),
        (
            MESSAGES,
            {"X-Claude-Code-Session-Id": "c", "x-session-id": "o"},
            {},
            SessionKey(session="c"),
        ),
        (
            MESSAGES,
            {"X-Claude-Code-Session-Id": "c", "x-claude-code-agent-id": "a"},
            {},
            SessionKey(session="c", agent="a"),
        ),
        (MESSAGES, {}, {"metadata": {"user_id": '{"session_id": "m"}'}}, SessionKey(session="m")),
        (
            MESSAGES,
            {"x-session-id": "o"},
            {"metadata": {"user_id": '{"session_id": "m"}'}},
            SessionKey(session="o"),
        ),
        (COUNT, {"X-Claude-Code-Session-Id": "c"}, {}, SessionKey(session="c")),
    ],
)
async def test_the_replica_is_chosen_by_session_and_agent(
    path: str, headers: dict[str, str], body: dict[str, Any], key: SessionKey
) -> None:
    assert await chosen_for(path, body=body, headers=headers) == key


async def test_session_and_agent_are_in_the_log_line_however_strange(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "keepwarm.gateway.requests")
    headers = {"x-claude-code-session-id": "s" * 5000, "x-claude-code-agent-id": 'a "b"=c'}
    async with without_socket(ScriptedReplica(script)) as client:
        await client.post(MESSAGES, json=BODY, headers=headers)
        await client.post(MESSAGES, json=BODY)
    named, nameless = caplog.records
    assert named.__dict__["fields"]["session"].startswith("sha256:")
    assert " agent='a \"b\"=c' " in named.getMessage()
    assert len(named.getMessage()) < 1000
    assert "session" not in nameless.getMessage()
    assert "agent" not in nameless.getMessage()


async def test_a_key_of_another_service_is_noted_in_the_log_line_and_never_shown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    async with without_socket(ScriptedReplica(script)) as client:
        await client.post(MESSAGES, json=BODY, headers={"authorization": "Bearer sk-ant-leftover"})
        await client.post(MESSAGES, json=BODY, headers={"authorization": f"Bearer {OTHER_KEY}"})
    let_in, refused = (record for record in caplog.records if record.name == "keepwarm.gateway.requests")
    assert " ignored_key_header=authorization " in let_in.getMessage()
    assert "outcome=unauthorized" in refused.getMessage()
    logged = "\n".join(record.getMessage() for record in caplog.records)
    assert "leftover" not in logged
    assert OTHER_KEY not in logged


# Names


@pytest.mark.parametrize("model", ["smol", "haiku", "claude-opus-4-8[1m]", "anthropic/claude-x", "default"])
@pytest.mark.parametrize("path", [MESSAGES, CHAT])
async def test_the_answer_names_what_was_asked_and_log_and_metrics_what_is_served(
    path: str, model: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "keepwarm.gateway.requests")
    async with without_socket(ScriptedReplica(script)) as client:
        whole = await client.post(path, json=BODY | {"model": model})
        streamed = await client.post(path, json=BODY | {"model": model, "stream": True})
    assert whole.json()["model"] == model
    assert f'"model":"{model}"' in streamed.text
    assert [record.__dict__["fields"]["model"] for record in caplog.records] == ["smol", "smol"]


async def test_tokens_are_counted_under_any_name_of_the_model() -> None:
    async with without_socket(ScriptedReplica(script)) as client:
        counted = await client.post(COUNT, json=BODY | {"model": "claude-haiku-4-5"})
    assert counted.json() == {"input_tokens": 42}


async def test_aliases_are_the_settings() -> None:
    async with without_socket(ScriptedReplica(script), aliases=("gpt-*",)) as client:
        statuses = {
            model: (await client.post(CHAT, json=BODY | {"model": model})).status_code
            for model in ("smol", "gpt-9", "haiku", "claude-x", "default")
        }
        unknown = await client.post(MESSAGES, json=BODY | {"model": "haiku"})
    assert statuses == {"smol": 200, "gpt-9": 200, "haiku": 404, "claude-x": 404, "default": 404}
    assert unknown.json()["error"]["message"] == "model: 'haiku' is not served here; served: smol, gpt-*"


async def test_a_model_is_found_by_any_of_its_names() -> None:
    async with without_socket(ScriptedReplica()) as client:
        found = (await client.get("/v1/models/claude-sonnet-5")).json()
        slashed = (await client.get("/v1/models/anthropic/claude-x")).json()
        unknown = await client.get("/v1/models/gpt-9")
    assert (found["id"], found["display_name"], found["max_input_tokens"]) == (
        "claude-sonnet-5",
        "smol",
        8192,
    )
    assert slashed["id"] == "anthropic/claude-x"
    assert unknown.status_code == 404
