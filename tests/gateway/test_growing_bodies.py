"""Bodies read from where they differ, against the same bodies read whole."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepwarm.chat.chain import chain_on, chain_root
from keepwarm.chat.events import Accepted, Admitted, ChatEvent, Failed, Finished, TextDelta, Timings, Usage
from keepwarm.chat.messages import Message
from keepwarm.chat.request import ChatRequest
from keepwarm.core.errors import UnknownConversation, to_wire
from keepwarm.core.ids import TenantId
from keepwarm.core.session import NO_SESSION, SessionKey
from keepwarm.dialects import anthropic, openai_chat, openai_responses
from keepwarm.dialects.dialect import DEFAULT_OPTIONS, Dialect
from keepwarm.gateway import growing_bodies
from keepwarm.gateway.growing_bodies import GrowingBodies, ReadBody
from tests.gateway.doors import without_socket
from tests.gateway.scripted_replica import ScriptedReplica

_SAMPLES = Path(__file__).parent.parent / "fixtures" / "client_samples"
_ANNA, _BOB = TenantId("anna"), TenantId("bob")
_SESSION = SessionKey.of("s", "")
_REPLICA = object()
_DIALECTS: dict[str, Dialect] = {
    module.NAME: cast(Dialect, module)
    for module in cast(list[ModuleType], [anthropic, openai_chat, openai_responses])
}


@pytest.fixture(autouse=True)
def _small_bodies_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing_bodies, "_MIN_KNOWN_BYTES", 0)


def _sample(name: str) -> bytes:
    return json.dumps(json.loads((_SAMPLES / f"{name}.json").read_text())["body"]).encode()


def _names(dialect: Dialect, read: ReadBody) -> bytes:
    """The conversation's name, as the replica would know it."""
    chain = chain_root(read.turn.chat.tools) if read.known is None else read.known.chain
    return chain_on(chain, read.turn.chat.messages)[-1]


def _read_in_turn(
    dialect: Dialect, bodies: Sequence[bytes], session: SessionKey = _SESSION
) -> list[ReadBody]:
    """Each after the one before it, and the same conversation as read whole."""
    growing, found = GrowingBodies(DEFAULT_OPTIONS), []
    for body in bodies:
        read = growing.read(dialect, body, _ANNA, session)
        whole = growing.read_whole(dialect, read)
        assert _names(dialect, read) == _names(dialect, whole)
        num_known = 0 if read.known is None else read.known.num_messages
        assert num_known + len(read.turn.chat.messages) == len(whole.turn.chat.messages)
        assert {tool.name for tool in whole.turn.chat.found_tools} == {
            t.name for t in read.turn.chat.found_tools
        }
        growing.learn(dialect, read, _REPLICA)
        found.append(read)
    return found


@pytest.mark.parametrize("session", [_SESSION, NO_SESSION])
def test_a_session_of_claude_code_is_read_from_where_it_grew(session: SessionKey) -> None:
    names = ("cc_1_first_request", "cc_2_second_request", "cc_3_third_request", "cc_4_fourth_request")
    read = _read_in_turn(_DIALECTS["anthropic"], [_sample(name) for name in names], session)
    assert read[-1].known is not None


def _anthropic(messages: list[Any], **more: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 9, "messages": messages, "system": "be kind", **more}


def _rounds(rng: random.Random, num: int) -> list[tuple[str, list[str], str]]:
    """What was said, the calls' ids, what was asked."""
    words = ["hi", "é🙂", '"},{"', "]", "[{", "\\n", ",", "messages", " "]

    def text() -> str:
        return "".join(rng.choices(words, k=rng.randint(1, 4))) + "."

    return [(text(), [f"c{n}{k}" for k in range(rng.choice((0, 0, 1, 2)))], text()) for n in range(num)]


def _as_anthropic(rounds: list[tuple[str, list[str], str]], rng: random.Random) -> dict[str, Any]:
    messages: list[Any] = [{"role": "user", "content": "start"}]
    for said, calls, asked in rounds:
        uses = [{"type": "tool_use", "id": call, "name": "ls", "input": {}} for call in calls]
        results = [{"type": "tool_result", "tool_use_id": call, "content": asked} for call in calls]
        messages.append({"role": "assistant", "content": [{"type": "text", "text": said}, *uses]})
        messages.append({"role": "user", "content": [*results, {"type": "text", "text": asked}]})
    last = messages[-1]["content"]
    if isinstance(last, list):  # the mark moves
        messages[-1]["content"] = [*last[:-1], {**last[-1], "cache_control": {"type": "ephemeral"}}]
    return _anthropic(messages, tools=[{"name": "ls", "input_schema": {"type": "object"}}])


def _as_chat(rounds: list[tuple[str, list[str], str]], rng: random.Random) -> dict[str, Any]:
    messages: list[Any] = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "start"}]
    for said, calls, asked in rounds:
        uses = [
            {"id": call, "type": "function", "function": {"name": "ls", "arguments": "{}"}} for call in calls
        ]
        messages.append({"role": "assistant", "content": said, **({"tool_calls": uses} if uses else {})})
        messages += [{"role": "tool", "tool_call_id": call, "content": asked} for call in calls]
        if not calls:
            messages.append({"role": "user", "content": asked})
    return {"model": "m", "messages": messages}


def _as_responses(rounds: list[tuple[str, list[str], str]], rng: random.Random) -> dict[str, Any]:
    items: list[Any] = [{"role": "user", "content": "start"}]
    for said, calls, asked in rounds:
        items.append(
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": said}]}
        )
        items += [
            {"type": "function_call", "call_id": call, "name": "ls", "arguments": "{}"} for call in calls
        ]
        items += [{"type": "function_call_output", "call_id": call, "output": asked} for call in calls]
        if not calls:
            items.append({"role": "user", "content": asked})
    return {"model": "m", "instructions": "be kind", "input": items}


_WRITERS = {"anthropic": _as_anthropic, "openai_chat": _as_chat, "openai_responses": _as_responses}


@pytest.mark.parametrize("name", _WRITERS)
@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**32), num=st.integers(4, 9), spaced=st.booleans(), escaped=st.booleans())
def test_a_growing_conversation_is_the_same_read_in_part(
    name: str, seed: int, num: int, spaced: bool, escaped: bool
) -> None:
    rng = random.Random(seed)
    rounds = _rounds(rng, num)
    separators = (", ", ": ") if spaced else (",", ":")
    bodies = [
        json.dumps(_WRITERS[name](rounds[:upto], rng), separators=separators, ensure_ascii=escaped).encode()
        for upto in range(1, num + 1)
    ]
    read = _read_in_turn(_DIALECTS[name], bodies)
    assert read[-1].known is not None


def test_what_is_kept_of_many_sessions_is_bounded_in_bytes_whatever_tools_they_found() -> None:
    dialect, growing = _DIALECTS["anthropic"], GrowingBodies(DEFAULT_OPTIONS, max_bytes=100_000)
    turns = [json.dumps(_with_a_found_tool(num, "x" * 20_000)).encode() for num in (5, 6)]

    def is_known(body: bytes, session: str) -> bool:
        read = growing.read(dialect, body, _ANNA, SessionKey.of(session, ""))
        growing.learn(dialect, read, _REPLICA)
        return read.known is not None

    for session in ("first", "second", "third"):
        assert not is_known(turns[0], session)

    assert is_known(turns[1], "third")
    assert not is_known(turns[1], "first")


def _with_a_found_tool(num_rounds: int, description: str) -> dict[str, Any]:
    """A deferred tool that the first result refers to."""
    rng = random.Random(1)
    body = _as_anthropic(_rounds(rng, num_rounds), rng)
    start, *others = body["messages"]
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "s", "name": "ls", "input": {}}]}
    found: dict[str, Any] = {"type": "tool_result", "tool_use_id": "s"}
    found["content"] = [{"type": "tool_reference", "tool_name": "found"}]
    deferred = {"name": "found", "description": description, "input_schema": {}, "defer_loading": True}
    return body | {
        "messages": [start, call, {"role": "user", "content": [found]}, *others],
        "tools": [*body["tools"], deferred],
    }


def _grown(change: dict[str, Any], tenant: TenantId = _ANNA) -> ReadBody:
    """The fifth turn of a conversation whose fourth was read, changed."""
    dialect, rng = _DIALECTS["anthropic"], random.Random(1)
    rounds = _rounds(rng, 5)
    growing = GrowingBodies(DEFAULT_OPTIONS)
    first = json.dumps(_as_anthropic(rounds[:4], rng)).encode()
    growing.learn(dialect, growing.read(dialect, first, _ANNA, _SESSION), _REPLICA)
    return growing.read(dialect, json.dumps(_as_anthropic(rounds, rng) | change).encode(), tenant, _SESSION)


def test_what_stands_outside_the_messages_may_change_where_it_is_not_read() -> None:
    read = _grown({"temperature": 0.5, "stream": True})
    assert read.known is not None
    assert (read.turn.sampling.temperature, read.turn.stream) == (0.5, True)


@pytest.mark.parametrize(
    "change",
    [
        {"system": "be brief"},
        {"tools": [{"name": "rm", "input_schema": {"type": "object"}}]},
        {"messages": [{"role": "user", "content": "another"}]},
    ],
)
def test_another_system_other_tools_or_messages_are_read_whole(change: dict[str, Any]) -> None:
    assert _grown(change).known is None


def test_another_tenants_beginning_is_not_taken() -> None:
    assert _grown({}, tenant=_BOB).known is None


def test_an_error_in_a_grown_body_names_the_message_by_its_place_in_the_whole() -> None:
    rng = random.Random(1)
    rounds = _rounds(rng, 5)
    broken = _as_anthropic(rounds, rng)["messages"]
    broken[-1] = {"role": "nobody", "content": "x"}
    with pytest.raises(Exception, match=rf"messages\.{len(broken) - 1}\.role"):
        _grown({"messages": broken})


_TIMINGS = Timings(admitted_s=0.1, first_token_s=0.1, total_s=0.2)
_FINISHED = Finished(
    reason="end", usage=Usage(prompt_tokens=5, cached_tokens=0, output_tokens=1), timings=_TIMINGS
)


class _Forgetful:
    """A replica's script: knows every conversation, except when `forgets`."""

    def __init__(self) -> None:
        self.requests: list[ChatRequest] = []
        self.forgets = False

    def __call__(self, request: ChatRequest) -> Sequence[ChatEvent]:
        self.requests.append(request)
        if self.forgets and request.known is not None:
            return [Failed(error=to_wire(UnknownConversation("forgotten")))]
        said = TextDelta(text="yes")
        return [Accepted(prompt_tokens=5, is_known=True), Admitted(cached_tokens=0), said, _FINISHED]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_replica_that_forgot_is_sent_the_whole_and_the_client_sees_nothing_of_it(
    stream: bool,
) -> None:
    script, rng = _Forgetful(), random.Random(1)
    rounds = _rounds(rng, 6)
    async with without_socket(ScriptedReplica(script)) as client:
        for upto in (4, 5, 6):
            script.forgets = upto == 6
            body = _as_anthropic(rounds[:upto], rng) | {"model": "smol", "stream": stream}
            answer = await client.post("/v1/messages", json=body, headers={"x-session-id": "s"})
            assert answer.status_code == 200
            assert answer.text.count("yes") == 1
    kinds = [request.known is not None for request in script.requests]
    assert kinds == [False, True, True, False]
    assert _all_messages(script.requests[-1]) == 13 + 1


def _all_messages(request: ChatRequest) -> int:
    messages: tuple[Message, ...] = request.chat.messages
    return len(messages)
