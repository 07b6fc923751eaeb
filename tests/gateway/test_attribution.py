"""The line by which Claude Code tells its vendor of itself: off by default, counted, left in on request."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from keepwarm.chat.events import ChatEvent
from keepwarm.chat.request import ChatRequest
from tests.dialects.answers import said
from tests.gateway.doors import without_socket
from tests.gateway.scripted_replica import ScriptedReplica

LINE = "x-anthropic-billing-header: cc_version=2.1.332.a1b; cc_entrypoint=cli; cc_is_subagent=true;"
BODY: dict[str, Any] = {
    "model": "smol",
    "max_tokens": 16,
    "system": [{"type": "text", "text": f"{LINE}\n"}, {"type": "text", "text": "You are an agent."}],
    "messages": [{"role": "user", "content": f"What does {LINE} mean?"}],
}
COUNTER = 'keepwarm_gateway_normalised_lines_total{kind="attribution"}'


def script(_: ChatRequest) -> list[ChatEvent]:
    return said("Hello")


def system_of(request: ChatRequest) -> str:
    return "".join(message.text() for message in request.chat.messages if message.role == "system")


@pytest.mark.parametrize(("strip", "count"), [(True, "2.0"), (False, "0.0")])
async def test_the_line_is_taken_off_the_system_field_alone_and_counted_unless_switched_off(
    strip: bool, count: str
) -> None:
    replica = ScriptedReplica(script)
    async with without_socket(replica, strip_attribution=strip) as client:
        for _ in range(2):
            await client.post("/v1/messages", json=BODY)
        await client.post("/v1/messages/count_tokens", json=BODY)
        metrics = (await client.get("/metrics")).text
    request = (await replica.next_answer()).request
    assert ("x-anthropic-billing-header" in system_of(request)) != strip
    assert "You are an agent." in system_of(request)
    assert LINE in request.chat.messages[-1].text()
    counted_system = "".join(m.text() for m in replica.counted[0].messages if m.role == "system")
    assert counted_system == system_of(request)
    assert f"{COUNTER} {count}" in metrics


@pytest.mark.parametrize("strip", [True, False])
async def test_a_subagent_is_known_by_its_line_and_by_name_where_a_header_names_it(
    strip: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "keepwarm.gateway.requests")
    replica = ScriptedReplica(script)
    async with without_socket(replica, strip_attribution=strip) as client:
        await client.post("/v1/messages", json=BODY)
        await client.post("/v1/messages", json=BODY, headers={"x-claude-code-agent-id": "a7"})
    agents = [(await replica.next_answer()).request.session_key.agent for _ in range(2)]
    assert agents == ["subagent", "a7"]
    assert [record.__dict__["fields"]["agent"] for record in caplog.records] == agents
