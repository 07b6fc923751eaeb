"""Answers as responses: items and their events, usage, ends and errors."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given

from keepwarm.chat.events import (
    ChatEvent,
    Failed,
    LogprobOf,
    ReasoningDelta,
    StopReason,
    TextDelta,
    TokenReport,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from keepwarm.core.errors import (
    BadRequest,
    ContextTooLong,
    EngineLost,
    InvariantBroken,
    KeepwarmError,
    NotReady,
    Overloaded,
    to_wire,
)
from keepwarm.dialects import openai_responses
from keepwarm.dialects.collected import Collected
from keepwarm.dialects.openai_responses.replayable import sealed
from keepwarm.dialects.turn import Turn
from tests.dialects import answers
from tests.dialects.answers import HEAD, any_answer, finished, opening, said, with_everything
from tests.dialects.sse_reader import read_data, read_data_pieces, read_named, single_bytes

TOOLS = [
    {"type": "custom", "name": "apply_patch"},
    {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "spawn"}]},
    {"type": "tool_search", "execution": "client"},
]


def turn(**fields: Any) -> Turn:
    body = {"model": "smol", "input": "Hello", "tools": TOOLS} | fields
    return openai_responses.parse_turn(json.dumps(body).encode())


def streamed(events: list[ChatEvent], **fields: Any) -> bytes:
    stream = openai_responses.open_stream(HEAD, turn(**fields))
    return b"".join(stream.feed(event) for event in events)


def told(events: list[ChatEvent], **fields: Any) -> list[Any]:
    return read_data(streamed(events, **fields))


def whole(events: list[ChatEvent], **fields: Any) -> Any:
    collected = Collected()
    for event in events:
        collected.feed(event)
    return json.loads(openai_responses.whole_answer(HEAD, turn(**fields), collected))


def without_order(event: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in event.items() if key != "sequence_number"}


def a_call(name: str, *pieces: str) -> list[ChatEvent]:
    arguments: list[ChatEvent] = [ToolCallArguments(json=piece) for piece in pieces]
    start, end = ToolCallStart(id="call_1", name=name), ToolCallEnd()
    return [*opening(), start, *arguments, end, finished("tool_use")]


def test_a_text_answer_is_this_transcript() -> None:
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    message = {
        "id": "msg_1_0",
        "type": "message",
        "status": "in_progress",
        "role": "assistant",
        "content": [],
    }
    at = {"item_id": "msg_1_0", "output_index": 0, "content_index": 0}
    done = message | {"status": "completed", "content": [part | {"text": "Hello"}]}
    created, started, *items, completed = told(said("Hel", "lo"))
    assert (created["type"], started["type"]) == ("response.created", "response.in_progress")
    assert created["response"] == started["response"]
    assert created["response"]["status"] == "in_progress"
    assert [without_order(event) for event in items] == [
        {"type": "response.output_item.added", "output_index": 0, "item": message},
        {"type": "response.content_part.added", **at, "part": part},
        {"type": "response.output_text.delta", **at, "delta": "Hel", "logprobs": []},
        {"type": "response.output_text.delta", **at, "delta": "lo", "logprobs": []},
        {"type": "response.output_text.done", **at, "text": "Hello", "logprobs": []},
        {"type": "response.content_part.done", **at, "part": part | {"text": "Hello"}},
        {"type": "response.output_item.done", "output_index": 0, "item": done},
    ]
    assert completed["type"] == "response.completed"
    assert completed["response"]["output"] == [done]
    assert completed["response"]["status"] == "completed"
    assert completed["response"]["usage"] == {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 80, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 105,
    }


def test_events_are_numbered_and_named_as_their_type() -> None:
    events = read_named(streamed(with_everything()))
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    assert all(name == data["type"] for name, data in events)


def test_items_follow_one_another() -> None:
    shape = [
        (event["type"].removeprefix("response."), event["output_index"])
        for event in told(with_everything())
        if "output_index" in event
    ]
    assert shape == [
        ("output_item.added", 0),
        ("content_part.added", 0),
        ("reasoning_text.delta", 0),
        ("reasoning_text.delta", 0),
        ("reasoning_text.done", 0),
        ("content_part.done", 0),
        ("output_item.done", 0),
        ("output_item.added", 1),
        ("content_part.added", 1),
        ("output_text.delta", 1),
        ("output_text.done", 1),
        ("content_part.done", 1),
        ("output_item.done", 1),
        ("output_item.added", 2),
        ("function_call_arguments.delta", 2),
        ("function_call_arguments.delta", 2),
        ("function_call_arguments.done", 2),
        ("output_item.done", 2),
        ("output_item.added", 3),
        ("function_call_arguments.delta", 3),
        ("function_call_arguments.done", 3),
        ("output_item.done", 3),
    ]


def test_calls_carry_what_the_client_answers_to() -> None:
    *_, first, second = whole(with_everything())["output"]
    assert first == {
        "id": "fc_1_2",
        "type": "function_call",
        "status": "completed",
        "arguments": '{"path":"a.txt"}',
        "call_id": "toolu_1",
        "name": "Read",
    }
    assert second["arguments"] == "{}"


def test_a_call_in_a_namespace_goes_back_in_it() -> None:
    (item,) = whole(a_call("agents__spawn", "{}"))["output"]
    assert (item["name"], item["namespace"]) == ("spawn", "agents")


def test_a_custom_tool_gets_its_text_bare() -> None:
    events = told(a_call("apply_patch", '{"input": "*** Be', 'gin\\nPatch"}'))
    added, *deltas, done, item_done = [event for event in events if "output_index" in event]
    assert added["item"] == {
        "id": "ctc_1_0",
        "type": "custom_tool_call",
        "status": "in_progress",
        "input": "",
        "call_id": "call_1",
        "name": "apply_patch",
    }
    assert [delta["type"] for delta in deltas] == ["response.custom_tool_call_input.delta"] * 2
    assert [delta["delta"] for delta in deltas] == ["*** Be", "gin\nPatch"]
    assert done["input"] == item_done["item"]["input"] == "*** Begin\nPatch"


def test_a_search_for_tools_gets_its_arguments_as_an_object() -> None:
    (item,) = whole(a_call("tool_search", '{"query": "mail"}'))["output"]
    assert item == {
        "id": "tsc_1_0",
        "type": "tool_search_call",
        "status": "completed",
        "execution": "client",
        "arguments": {"query": "mail"},
        "call_id": "call_1",
    }


def test_thoughts_are_a_summary_where_one_was_asked_for() -> None:
    thinking = [*opening(), ReasoningDelta(text="Let me "), ReasoningDelta(text="see."), finished()]
    fields = {"reasoning": {"summary": "auto"}, "include": ["reasoning.encrypted_content"]}
    events = told(thinking, **fields)
    types = [event["type"].removeprefix("response.") for event in events if "output_index" in event]
    assert types == [
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
    ]
    assert all(event.get("summary_index", 0) == 0 for event in events)
    (item,) = events[-1]["response"]["output"]
    assert item == {
        "id": "rs_1_0",
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "Let me see."}],
        "encrypted_content": sealed("Let me see."),
    }
    (raw,) = whole(thinking)["output"]
    assert raw["content"] == [{"type": "reasoning_text", "text": "Let me see."}]
    assert "encrypted_content" not in raw


def test_the_items_of_an_answer_come_back_as_the_message_they_were() -> None:
    fields = {"reasoning": {"summary": "auto"}, "include": ["reasoning.encrypted_content"]}
    output = whole(with_everything(), **fields)["output"]
    (_, message) = turn(input=[{"role": "user", "content": "Go"}, *output]).chat.messages
    kinds = [type(part).__name__ for part in message.parts]
    assert kinds == ["Reasoning", "Text", "ToolUse", "ToolUse"]
    assert message.text() == "I will look."


def test_the_request_is_repeated_in_the_response() -> None:
    fields: dict[str, Any] = {
        "instructions": "Be\nbrief.",
        "metadata": {"a": "b"},
        "temperature": 0,
        "max_output_tokens": 9,
        "text": {"format": {"type": "json_object"}, "verbosity": "low"},
        "reasoning": {"effort": "low"},
        "parallel_tool_calls": False,
        "tool_choice": "none",
        "prompt_cache_key": "k",
        "store": True,
    }
    answer = whole(said("Hi"), **fields)
    for name in ("instructions", "metadata", "temperature", "max_output_tokens", "text", "tool_choice"):
        assert answer[name] == fields[name]
    assert answer["tools"] == TOOLS
    assert answer["reasoning"] == {"effort": "low", "summary": None}
    assert answer["parallel_tool_calls"] is False
    assert answer["store"] is False  # nothing is kept, whatever was asked
    assert (answer["id"], answer["object"], answer["model"]) == ("resp_1", "response", "smol")
    assert whole(said("Hi"))["text"] == {"format": {"type": "text"}}


@pytest.mark.parametrize("reason", ["max_tokens", "context_full"])
def test_an_answer_that_was_cut_short_is_incomplete(reason: StopReason) -> None:
    events: list[ChatEvent] = [*opening(), TextDelta(text="Hel"), finished(reason)]
    last = told(events)[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert last["response"]["output"][0]["status"] == "incomplete"
    assert last["response"] == whole(events)


def test_a_call_that_its_end_finds_open_is_closed() -> None:
    events = told([*opening(), ToolCallStart(id="c", name="Read"), finished("max_tokens")])
    item = events[-1]["response"]["output"][0]
    assert (item["status"], item["arguments"]) == ("incomplete", "{}")


def test_log_probabilities_are_told_a_token() -> None:
    first = LogprobOf(token="é", token_bytes="é".encode(), logprob=-math.inf)
    event = TextDelta(text="é", logprobs=(TokenReport(chosen=first),))
    entry = {"token": "é", "logprob": -9999.0, "bytes": [195, 169], "top_logprobs": []}
    events = told([*opening(), event, finished()])
    assert events[4]["logprobs"] == [entry]
    assert whole([*opening(), event, finished()])["output"][0]["content"][0]["logprobs"] == [entry]


def test_a_ping_is_a_comment() -> None:
    stream = openai_responses.open_stream(HEAD, turn())
    assert read_data(stream.ping()) == []
    assert stream.ping().startswith(b":")


@given(any_answer)
def test_the_stream_cut_at_every_byte_reads_alike(events: list[ChatEvent]) -> None:
    raw = streamed(events)
    assert read_data_pieces(single_bytes(raw)) == read_data(raw)


@given(any_answer)
def test_deltas_join_to_the_whole_answer(events: list[ChatEvent]) -> None:
    told_so_far: dict[int, str] = {}
    items: dict[int, Any] = {}
    for event in told(events):
        if event["type"].endswith(".delta"):
            index = event["output_index"]
            told_so_far[index] = told_so_far.get(index, "") + event["delta"]
        elif event["type"] == "response.output_item.done":
            items[event["output_index"]] = event["item"]
    answer = whole(events)
    assert list(items.values()) == answer["output"] == told(events)[-1]["response"]["output"]
    joined = [
        item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        for item in answer["output"]
    ]
    assert [told_so_far[index] for index in items] == joined


# Errors


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ContextTooLong(tokens=9, limit=8), "context_length_exceeded"),
        (BadRequest("x: wrong"), "invalid_prompt"),
        (Overloaded(message="the queue is full", retry_after_s=6.5), "rate_limit_exceeded"),
        (EngineLost("the rank died"), "server_error"),
        (InvariantBroken("secret internals"), "server_error"),
    ],
)
def test_a_response_that_breaks_off_says_why(error: KeepwarmError, code: str) -> None:
    stream = openai_responses.open_stream(HEAD, turn())
    raw = stream.feed(opening()[0]) + stream.feed(TextDelta(text="Hel")) + stream.fail(error)
    last = read_data(raw)[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["status"] == "failed"
    assert last["response"]["error"]["code"] == code
    assert "secret" not in last["response"]["error"]["message"]


def test_a_client_is_told_in_words_how_long_to_wait() -> None:
    stream = openai_responses.open_stream(HEAD, turn())
    *_, last = read_data(stream.fail(Overloaded(message="the queue is full", retry_after_s=6.5)))
    assert last["response"]["error"]["message"] == "the queue is full; please try again in 7s"


def test_an_error_before_anything_else_still_has_a_response_around_it() -> None:
    stream = openai_responses.open_stream(HEAD, turn())
    failed = Failed(error=to_wire(EngineLost("gone")))
    types = [event["type"] for event in read_data(stream.feed(failed))]
    assert types == ["response.created", "response.in_progress", "response.failed"]


def test_overload_before_the_stream_is_a_status_that_codex_tries_again_after() -> None:
    reply = openai_responses.error_reply(Overloaded(message="full", retry_after_s=7.2), "r")
    assert (reply.status, reply.retry_after_s) == (503, 8)
    assert json.loads(reply.body)["error"]["code"] == "overloaded"
    assert openai_responses.error_reply(NotReady("loading"), "r").status == 503
    assert openai_responses.error_reply(ContextTooLong(tokens=9, limit=8), "r").status == 400


def test_pieces_without_their_item_are_our_own_mistake() -> None:
    stream = openai_responses.open_stream(HEAD, turn())
    with pytest.raises(InvariantBroken):
        stream.feed(ToolCallArguments(json="{}"))
    stream.feed(TextDelta(text="Hi"))
    with pytest.raises(InvariantBroken):
        stream.feed(ToolCallArguments(json="{}"))


def test_a_turn_of_another_dialect_is_our_own_mistake() -> None:
    with pytest.raises(InvariantBroken):
        openai_responses.open_stream(HEAD, answers.turn())
