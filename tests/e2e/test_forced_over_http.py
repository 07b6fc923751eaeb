"""What clients force, in each dialect, over HTTP with the embedded model.

One call each: this model would often make calls until its tokens end where it may make several.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.served import Served

pytest.importorskip("xgrammar")

pytestmark = pytest.mark.engine

CITY = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Rome", "Bern"]},
        "days": {"type": "integer", "maximum": 9, "minimum": 1},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
SAY = [{"role": "user", "content": "The weather in Rome, please."}]


def post(served: Served, path: str, **body: Any) -> Any:
    with served.client() as client:
        response = client.post(path, json={"model": served.model, "temperature": 1, **body})
    assert response.status_code == 200, response.text
    return response.json()


def check(arguments: Any) -> None:
    assert list(arguments) == ["city", "days"]
    assert arguments["city"] in ("Rome", "Bern")
    assert arguments["days"] in range(1, 10)


@pytest.mark.parametrize(
    "choice",
    [{"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "weather"}],
)
def test_a_forced_tool_of_anthropics_dialect(served: Served, choice: dict[str, Any]) -> None:
    tools = [{"name": "weather", "description": "", "input_schema": CITY}]
    answer = post(served, "/v1/messages", max_tokens=200, messages=SAY, tools=tools, tool_choice=choice)
    assert answer["stop_reason"] == "tool_use"
    for block in answer["content"]:
        assert (block["type"], block["name"]) == ("tool_use", "weather")
        check(block["input"])


def test_a_forced_tool_of_openais_dialect(served: Served) -> None:
    tools = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}]
    answer = post(
        served,
        "/v1/chat/completions",
        max_tokens=200,
        messages=SAY,
        tools=tools,
        tool_choice="required",
        parallel_tool_calls=False,
    )
    [choice] = answer["choices"]
    assert choice["finish_reason"] == "tool_calls"
    [call] = choice["message"]["tool_calls"]
    check(json.loads(call["function"]["arguments"]))


def test_a_schema_in_every_dialect(served: Served) -> None:
    form = {"type": "json_schema", "schema": CITY}
    answer = post(served, "/v1/messages", max_tokens=200, messages=SAY, output_config={"format": form})
    check(json.loads("".join(block["text"] for block in answer["content"])))
    wrapped = {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": CITY}}
    answer = post(served, "/v1/chat/completions", max_tokens=200, messages=SAY, response_format=wrapped)
    check(json.loads(answer["choices"][0]["message"]["content"]))
    named = {"format": {**form, "name": "city"}}
    answer = post(served, "/v1/responses", max_output_tokens=200, input="Rome, please.", text=named)
    [message] = [item for item in answer["output"] if item["type"] == "message"]
    check(json.loads("".join(part["text"] for part in message["content"])))


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        ({"type": "nonsense"}, "nonsense"),
        ({"type": "object", "properties": {"a": {"type": "string", "pattern": "(["}}}, "Unclosed"),
    ],
    ids=["seen by the front", "seen by the compiler"],
)
def test_a_schema_that_cannot_be_enforced_is_a_bad_request(
    served: Served, schema: dict[str, Any], complaint: str
) -> None:
    wrapped = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    body = {"model": served.model, "messages": SAY, "max_tokens": 20, "response_format": wrapped}
    with served.client() as client:
        response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == 400, response.text
    message = response.json()["error"]["message"]
    assert message.startswith("response_format: ")
    assert complaint in message
    assert served.held_blocks() == 0


def test_a_tool_that_is_not_declared_cannot_be_forced(served: Served) -> None:
    tools = [{"name": "weather", "description": "", "input_schema": CITY}]
    body = {"model": served.model, "messages": SAY, "max_tokens": 20, "tools": tools}
    with served.client() as client:
        response = client.post("/v1/messages", json=body | {"tool_choice": {"type": "tool", "name": "gone"}})
    assert response.status_code == 400, response.text
    assert "gone" in response.json()["error"]["message"]
