"""Answers in Anthropic's form: the order of events, block by block, and the usage."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from keepwarm.chat.events import Accepted, ChatEvent, Failed, StopReason, TextDelta, ToolCallArguments
from keepwarm.core.errors import (
    BadRequest,
    BodyTooLarge,
    ContextTooLong,
    Degraded,
    EngineLost,
    InvariantBroken,
    KeepwarmError,
    NotFound,
    NotReady,
    Overloaded,
    ReplicaLost,
    Unauthorized,
    to_wire,
)
from keepwarm.dialects import anthropic
from keepwarm.dialects.collected import Collected
from tests.dialects.answers import HEAD, any_answer, finished, opening, said, turn, with_everything
from tests.dialects.sse_reader import read_named, read_named_pieces, single_bytes


def streamed(events: list[ChatEvent]) -> bytes:
    stream = anthropic.open_stream(HEAD, turn())
    return b"".join(stream.feed(event) for event in events)


def whole(events: list[ChatEvent]) -> Any:
    collected = Collected()
    for event in events:
        collected.feed(event)
    return json.loads(anthropic.whole_answer(HEAD, turn(stream=False), collected))


def test_a_text_answer_is_this_transcript() -> None:
    assert read_named(streamed(said("Hel", "lo"))) == [
        (
            "message_start",
            {
                "type": "message_start",
                "message": {
                    "id": "msg_1",
                    "type": "message",
                    "role": "assistant",
                    "model": "smol",
                    "content": [],
                    "stop_reason": None,
                    "stop_sequence": None,
                    "usage": {
                        "input_tokens": 20,
                        "cache_creation_input_tokens": 0,
                        "cache_read_input_tokens": 80,
                        "output_tokens": 0,
                    },
                },
            },
        ),
        ("ping", {"type": "ping"}),
        (
            "content_block_start",
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        ),
        (
            "content_block_delta",
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel"}},
        ),
        (
            "content_block_delta",
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "lo"}},
        ),
        ("content_block_stop", {"type": "content_block_stop", "index": 0}),
        (
            "message_delta",
            {
                "type": "message_delta",
                "delta": {"stop_reason": "end_turn", "stop_sequence": None},
                "usage": {
                    "input_tokens": 20,
                    "cache_creation_input_tokens": 0,
                    "cache_read_input_tokens": 80,
                    "output_tokens": 5,
                },
            },
        ),
        ("message_stop", {"type": "message_stop"}),
    ]


def test_blocks_are_closed_before_their_kind_changes() -> None:
    events = [data for _, data in read_named(streamed(with_everything()))]
    shape = [
        (data["type"], data.get("index"), data.get("delta", data.get("content_block", {})).get("type"))
        for data in events
        if data["type"].startswith("content_block")
    ]
    assert shape == [
        ("content_block_start", 0, "thinking"),
        ("content_block_delta", 0, "thinking_delta"),
        ("content_block_delta", 0, "thinking_delta"),
        ("content_block_delta", 0, "signature_delta"),
        ("content_block_stop", 0, None),
        ("content_block_start", 1, "text"),
        ("content_block_delta", 1, "text_delta"),
        ("content_block_stop", 1, None),
        ("content_block_start", 2, "tool_use"),
        ("content_block_delta", 2, "input_json_delta"),
        ("content_block_delta", 2, "input_json_delta"),
        ("content_block_stop", 2, None),
        ("content_block_start", 3, "tool_use"),
        ("content_block_stop", 3, None),
    ]
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


def test_the_whole_answer_holds_the_same_blocks() -> None:
    answer = whole(with_everything())
    assert [block["type"] for block in answer["content"]] == ["thinking", "text", "tool_use", "tool_use"]
    assert answer["content"][0]["thinking"] == "Let me think."
    assert answer["content"][2] == {
        "type": "tool_use",
        "id": "toolu_1",
        "name": "Read",
        "input": {"path": "a.txt"},
    }
    assert answer["content"][3]["input"] == {}
    assert answer["usage"] == {
        "input_tokens": 20,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 80,
        "output_tokens": 5,
    }


def test_zero_cached_tokens_are_written_as_zero() -> None:
    answer = whole([*opening(0), finished(cached=0)])
    assert answer["usage"]["cache_read_input_tokens"] == 0
    assert answer["usage"]["input_tokens"] == 100


@pytest.mark.parametrize(
    ("reason", "stop_reason"),
    [
        ("end", "end_turn"),
        ("max_tokens", "max_tokens"),
        ("tool_use", "tool_use"),
        ("context_full", "model_context_window_exceeded"),
    ],
)
def test_stop_reasons_have_anthropics_names(reason: StopReason, stop_reason: str) -> None:
    assert whole([*opening(), finished(reason)])["stop_reason"] == stop_reason


def test_a_stop_sequence_is_named() -> None:
    end = finished("stop_string", stop_string="\n\nHuman:")
    assert whole([*opening(), end])["stop_sequence"] == "\n\nHuman:"
    delta = read_named(streamed([*opening(), end]))[-2][1]["delta"]
    assert delta == {"stop_reason": "stop_sequence", "stop_sequence": "\n\nHuman:"}


def test_an_answer_without_words_still_begins_and_ends() -> None:
    names = [name for name, _ in read_named(streamed([*opening(), finished()]))]
    assert names == ["message_start", "ping", "message_delta", "message_stop"]


def test_a_ping_may_come_before_the_message() -> None:
    stream = anthropic.open_stream(HEAD, turn())
    assert read_named(stream.ping()) == [("ping", {"type": "ping"})]
    assert stream.feed(Accepted(prompt_tokens=3)) == b""


def test_line_breaks_of_other_alphabets_never_cut_a_line() -> None:
    text = "a\u2028b\u2029c\x85d\r\ne"
    raw = streamed(said(text))
    assert all(line.startswith((b"event: ", b"data: ")) for line in raw.split(b"\n") if line)
    assert len(raw.decode().splitlines()) == raw.count(b"\n")
    assert read_named(raw)[3][1]["delta"]["text"] == text


def test_arguments_outside_a_call_are_our_own_mistake() -> None:
    stream = anthropic.open_stream(HEAD, turn())
    with pytest.raises(InvariantBroken):
        stream.feed(ToolCallArguments(json="{}"))


def test_arguments_that_are_no_object_go_out_under_a_name_clients_know() -> None:
    events = with_everything()
    events[6] = ToolCallArguments(json='{"path":')
    events[7] = ToolCallArguments(json="")
    assert whole(events)["content"][2]["input"] == {"__unparsedToolInput": '{"path":'}


@given(any_answer)
def test_the_stream_cut_at_every_byte_reads_alike(events: list[ChatEvent]) -> None:
    raw = streamed(events)
    assert read_named_pieces(single_bytes(raw)) == read_named(raw)


@given(any_answer)
def test_streamed_blocks_equal_the_whole_answer(events: list[ChatEvent]) -> None:
    blocks: list[dict[str, Any]] = []
    for _, data in read_named(streamed(events)):
        match data["type"]:
            case "content_block_start":
                assert data["index"] == len(blocks)
                blocks.append(data["content_block"] | {"json": ""})
            case "content_block_delta":
                delta = dict(data["delta"])
                kind = delta.pop("type")
                key = "json" if kind == "input_json_delta" else kind.removesuffix("_delta")
                blocks[data["index"]][key] += delta.popitem()[1]
    for block in blocks:
        arguments = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = json.loads(arguments)
    assert blocks == whole(events)["content"]


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (BadRequest("x: wrong"), 400, "invalid_request_error"),
        (ContextTooLong(tokens=9, limit=8), 400, "invalid_request_error"),
        (Unauthorized("no key"), 401, "authentication_error"),
        (NotFound("no model"), 404, "not_found_error"),
        (BodyTooLarge(limit_bytes=1), 413, "request_too_large"),
        (ReplicaLost("gone"), 500, "api_error"),
        (EngineLost("gone"), 500, "api_error"),
        (InvariantBroken("secret internals"), 500, "api_error"),
        (Overloaded(message="queue full", retry_after_s=7.2), 529, "overloaded_error"),
        (NotReady("loading"), 529, "overloaded_error"),
        (Degraded("left stopped"), 503, "api_error"),
    ],
)
def test_errors_have_anthropics_status_and_shape(error: KeepwarmError, status: int, kind: str) -> None:
    reply = anthropic.error_reply(error, "req_1")
    body = json.loads(reply.body)
    assert reply.status == status
    assert body["type"] == "error"
    assert body["request_id"] == "req_1"
    assert body["error"]["type"] == kind
    if isinstance(error, InvariantBroken):
        assert "secret" not in body["error"]["message"]
    else:
        assert body["error"]["message"] == str(error)


def test_overload_says_when_to_come_back() -> None:
    assert anthropic.error_reply(Overloaded(message="x", retry_after_s=7.2), "r").retry_after_s == 8
    assert anthropic.error_reply(BadRequest("x"), "r").retry_after_s is None
    assert anthropic.error_reply(ReplicaLost("x"), "r").retry_after_s == 5


def test_what_has_to_be_mended_first_is_not_worth_coming_back_for() -> None:
    reply = anthropic.error_reply(Degraded("x"), "r")
    assert (reply.retry_after_s, reply.is_lasting) == (None, True)
    assert not anthropic.error_reply(NotReady("x"), "r").is_lasting


def test_an_error_after_the_first_byte_is_an_event() -> None:
    failed = Failed(error=to_wire(EngineLost("the rank process went away")))
    events = read_named(streamed([*opening(), TextDelta(text="Hel"), failed]))
    assert events[-1] == (
        "error",
        {
            "type": "error",
            "error": {"type": "api_error", "message": "the rank process went away"},
            "request_id": "req_1",
        },
    )
