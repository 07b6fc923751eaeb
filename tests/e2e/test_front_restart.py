"""A front that is killed: what the gateway remembers of it is of no use, and costs no turn."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.clients.scripted_server import CONTEXT_TOKENS, LoggedRequest, requests_in
from tests.e2e.served import Served, eventually, serve

pytestmark = pytest.mark.engine

SCRIPT = """\
[[answers]]
when = "Look at it"
say = '''<tool_call>
{"name":   "look",    "arguments": {"at":    "it"}}
</tool_call>'''

[[answers]]
say = "I have read it."
"""
LONG = "word " * 4_000  # what is short is read whole anyway


def ask(served: Served, messages: list[dict[str, Any]]) -> str:
    body = {"model": served.model, "max_tokens": 64, "messages": messages}
    with served.client() as client:
        answer = client.post("/v1/messages", json=body, headers={"x-session-id": "s1"})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["content"][0]["text"])


def kill_front(served: Served) -> None:
    os.kill(served.front_pid(), signal.SIGKILL)
    eventually(lambda: httpx.get(f"{served.url}/readyz").status_code != 200)
    eventually(lambda: httpx.get(f"{served.url}/readyz").status_code == 200, limit_s=60)


LOOK = {
    "name": "look",
    "description": "Looks at something.",
    "input_schema": {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
}


def prompt_tokens_before_and_after(served: Served) -> tuple[int, int]:
    """Of the turn that follows a call which the model spelled in its own way: in the front that heard
    the model, and in the one after it."""
    asked: list[dict[str, Any]] = [{"role": "user", "content": "Look at it."}]
    body = {"model": served.model, "max_tokens": 64, "tools": [LOOK]}
    with served.client() as client:
        call = client.post("/v1/messages", json=body | {"messages": asked}).json()["content"][0]
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": "seen"}
        more = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
        turn = body | {"messages": asked + more}

        def num_prompt_tokens() -> int:
            usage = client.post("/v1/messages", json=turn).json()["usage"]
            return int(usage["input_tokens"] + (usage["cache_read_input_tokens"] or 0))

        before = num_prompt_tokens()
        kill_front(served)
        return before, num_prompt_tokens()


@pytest.mark.parametrize("host_cache_gb", ["0.1", "0"])
def test_what_was_generated_is_known_to_the_next_front(tmp_path: Path, host_cache_gb: str) -> None:
    """A call comes back from the client without its spelling. With its ids it is still the same
    prefix, to which the blocks of host memory belong; without host memory there are no blocks either."""
    script = tmp_path / "script.toml"
    script.write_text(SCRIPT)
    options = ("--engine", "scripted", "--script", str(script), "--host-cache-gb", host_cache_gb)
    with serve(tmp_path, *options) as served:
        before, after = prompt_tokens_before_and_after(served)
    assert (before == after) is (host_cache_gb != "0")


def turns_of(served: Served, num_expected: int) -> list[LoggedRequest]:
    def found() -> list[LoggedRequest]:
        return [request for request in requests_in(served.log.read_text()) if request.is_turn()]

    eventually(lambda: len(found()) >= num_expected)
    return found()


def test_a_conversation_goes_on_over_the_death_of_the_front(tmp_path: Path) -> None:
    """The gateway leaves out what the dead front knew, is told so, and sends the whole."""
    script = tmp_path / "script.toml"
    script.write_text(SCRIPT)
    options = ("--engine", "scripted", "--script", str(script), "--max-model-len", str(CONTEXT_TOKENS))
    with serve(tmp_path, *options) as served:
        messages: list[dict[str, Any]] = [{"role": "user", "content": LONG}]
        for turn in range(6):
            if turn == 4:
                kill_front(served)
            text = ask(served, messages)
            assert text == "I have read it."
            messages += [
                {"role": "assistant", "content": text},
                {"role": "user", "content": f"And {turn}?"},
            ]
        known = [int(turn.fields.get("known_messages", "0")) for turn in turns_of(served, 6)]
    assert known[3] > 0  # it had been left out
    assert known[4] == 0  # it had to be sent
    assert known[5] > known[3]  # and the new front knows it
