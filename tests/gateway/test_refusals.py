"""Refusals in the words and places that make each client do the right thing: compact, wait, or stop."""

from __future__ import annotations

import json
from typing import Any

import pytest

from keepwarm.chat.events import Failed
from keepwarm.core.errors import ContextTooLong, KeepwarmError, NotReady, Overloaded, to_wire
from tests.gateway.doors import on_loopback
from tests.gateway.scripted_replica import ScriptedReplica

MESSAGES: dict[str, Any] = {"max_tokens": 16, "messages": [{"role": "user", "content": "Hello"}]}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/messages": MESSAGES,
    "/v1/chat/completions": MESSAGES,
    "/v1/responses": {"input": "Hello"},
}
PATHS = pytest.mark.parametrize("path", list(BODIES))
TOO_LONG = "prompt is too long: 208310 tokens > 200000 maximum"


async def refused(path: str, error: KeepwarmError, *, stream: bool) -> Any:
    failed = Failed(error=to_wire(error))
    body = BODIES[path] | {"model": "smol", "stream": stream}
    async with on_loopback(ScriptedReplica(lambda _: [failed])) as door, door.client() as client:
        return await client.post(path, json=body)


@pytest.mark.parametrize("stream", [False, True])
@PATHS
async def test_a_prompt_over_the_context_is_told_in_the_words_that_clients_compact_on(
    path: str, stream: bool
) -> None:
    response = await refused(path, ContextTooLong(tokens=208_310, limit=200_000), stream=stream)

    if path == "/v1/responses" and stream:
        assert response.status_code == 200
        last = response.text.strip().splitlines()[-1]
        failure = json.loads(last.removeprefix("data: "))
        assert failure["type"] == "response.failed"
        error = failure["response"]["error"]
    else:
        assert response.status_code == 400
        error = response.json()["error"]
    assert error["message"] == TOO_LONG
    assert path == "/v1/messages" or error["code"] == "context_length_exceeded"


@PATHS
async def test_a_body_over_the_limit_is_told_in_the_words_that_clients_compact_on(path: str) -> None:
    body = BODIES[path] | {"model": "smol", "padding": "x" * 20_000}
    async with on_loopback(ScriptedReplica(), max_body_mb=0.01) as door, door.client() as client:
        response = await client.post(path, json=body)

    assert response.status_code == 413
    assert response.json()["error"]["message"].startswith("Request exceeds the maximum size")


@pytest.mark.parametrize("wanted_s", [0.0, 0.2, 7.5, 54.9, 3600.0, float("inf"), float("nan"), -1.0])
@pytest.mark.parametrize("stream", [False, True])
@PATHS
async def test_clients_are_told_to_come_back_soon_enough_to_listen(
    path: str, stream: bool, wanted_s: float
) -> None:
    """Told to wait a minute or longer, Claude Code fails at once."""
    response = await refused(path, Overloaded(message="busy", retry_after_s=wanted_s), stream=stream)

    assert response.status_code in (429, 503, 529)
    assert 1 <= int(response.headers["retry-after"]) <= 55


@PATHS
async def test_a_model_that_loads_is_worth_coming_back_for(path: str) -> None:
    response = await refused(path, NotReady("the model is loading"), stream=True)

    assert response.status_code in (503, 529)
    assert 1 <= int(response.headers["retry-after"]) <= 55
    assert "the model is loading" in response.text


@PATHS
async def test_more_output_than_there_is_room_for_is_no_reason_to_refuse(path: str) -> None:
    """After an answer cut at its limit, Claude Code asks for 128,000 tokens. The backend clamps."""
    replica = ScriptedReplica(lambda _: [Failed(error=to_wire(NotReady("asked")))])
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    async with on_loopback(replica) as door, door.client() as client:
        await client.post(path, json=BODIES[path] | {"model": "smol", limit: 10**12})

    assert ((await replica.next_answer()).request.max_output_tokens or 0) >= 128_000
