"""Answers in the form of Chat Completions: chunks, usage, log probabilities and errors."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given

from keepwarm.chat.events import ChatEvent, Failed, LogprobOf, StopReason, TextDelta, TokenReport
from keepwarm.core.errors import (
    BadRequest,
    BodyTooLarge,
    ContextTooLong,
    Degraded,
    EngineLost,
    InvariantBroken,
    KeepwarmError,
    NotReady,
    Overloaded,
    Unauthorized,
    to_wire,
)
from keepwarm.dialects import openai_chat
from keepwarm.dialects.collected import Collected
from keepwarm.dialects.errors import UnknownModel
from tests.dialects.answers import HEAD, any_answer, finished, opening, said, turn, with_everything
from tests.dialects.sse_reader import read_data, read_data_pieces, single_bytes


def streamed(events: list[ChatEvent], *, include_usage: bool = False) -> bytes:
    stream = openai_chat.open_stream(HEAD, turn(include_usage=include_usage))
    return b"".join(stream.feed(event) for event in events)


def whole(events: list[ChatEvent]) -> Any:
    collected = Collected()
    for event in events:
        collected.feed(event)
    return json.loads(openai_chat.whole_answer(HEAD, turn(stream=False), collected))


def chunk(delta: dict[str, Any], finish_reason: str | None = None, **fields: Any) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "smol",
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}],
        **fields,
    }


def test_a_text_answer_is_this_transcript() -> None:
    assert read_data(streamed(said("Hel", "lo"))) == [
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "Hel"}),
        chunk({"content": "lo"}),
        chunk({}, "stop"),
        "[DONE]",
    ]


def test_usage_comes_last_without_a_choice_where_it_was_asked_for() -> None:
    *chunks, usage, done = read_data(streamed(said("Hi"), include_usage=True))
    assert done == "[DONE]"
    assert all(each["usage"] is None for each in chunks)
    assert usage["choices"] == []
    assert usage["usage"] == {
        "prompt_tokens": 100,
        "completion_tokens": 5,
        "total_tokens": 105,
        "prompt_tokens_details": {"cached_tokens": 80},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def test_reasoning_and_calls_are_streamed_apart_from_text() -> None:
    deltas = [
        each["choices"][0]["delta"] for each in read_data(streamed(with_everything())) if each != "[DONE]"
    ]
    assert deltas == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "Let me "},
        {"reasoning_content": "think."},
        {"content": "I will look."},
        {
            "tool_calls": [
                {
                    "index": 0,
                    "id": "toolu_1",
                    "type": "function",
                    "function": {"name": "Read", "arguments": ""},
                }
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"path":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '"a.txt"}'}}]},
        {
            "tool_calls": [
                {
                    "index": 1,
                    "id": "toolu_2",
                    "type": "function",
                    "function": {"name": "List", "arguments": ""},
                }
            ]
        },
        {"tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]},
        {},
    ]


def test_the_whole_answer_holds_the_same() -> None:
    answer = whole(with_everything())
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "I will look.",
                "refusal": None,
                "reasoning_content": "Let me think.",
                "tool_calls": [
                    {
                        "id": "toolu_1",
                        "type": "function",
                        "function": {"name": "Read", "arguments": '{"path":"a.txt"}'},
                    },
                    {"id": "toolu_2", "type": "function", "function": {"name": "List", "arguments": "{}"}},
                ],
            },
            "logprobs": None,
            "finish_reason": "tool_calls",
        }
    ]
    assert answer["object"] == "chat.completion"
    assert whole([*opening(0), finished(cached=0)])["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


@pytest.mark.parametrize(
    ("reason", "finish_reason"),
    [
        ("end", "stop"),
        ("stop_string", "stop"),
        ("max_tokens", "length"),
        ("context_full", "length"),
        ("tool_use", "tool_calls"),
    ],
)
def test_finish_reasons_have_openais_names(reason: StopReason, finish_reason: str) -> None:
    assert whole([*opening(), finished(reason)])["choices"][0]["finish_reason"] == finish_reason


def test_log_probabilities_are_told_a_token() -> None:
    first = LogprobOf(token="é", token_bytes="é".encode(), logprob=-0.5)
    never = LogprobOf(token="x", token_bytes=b"x", logprob=-math.inf)
    event = TextDelta(text="é", logprobs=(TokenReport(chosen=first, top=(first, never)),))
    told = {
        "content": [
            {
                "token": "é",
                "logprob": -0.5,
                "bytes": [195, 169],
                "top_logprobs": [
                    {"token": "é", "logprob": -0.5, "bytes": [195, 169]},
                    {"token": "x", "logprob": -9999.0, "bytes": [120]},
                ],
            }
        ],
        "refusal": None,
    }
    assert read_data(streamed([*opening(), event]))[1]["choices"][0]["logprobs"] == told
    assert whole([*opening(), event, finished()])["choices"][0]["logprobs"] == told


def test_a_ping_is_a_comment() -> None:
    stream = openai_chat.open_stream(HEAD, turn())
    assert read_data(stream.ping()) == []
    assert stream.ping().startswith(b":")


@given(any_answer)
def test_the_stream_cut_at_every_byte_reads_alike(events: list[ChatEvent]) -> None:
    raw = streamed(events, include_usage=True)
    assert read_data_pieces(single_bytes(raw)) == read_data(raw)


@given(any_answer)
def test_streamed_text_equals_the_whole_answers(events: list[ChatEvent]) -> None:
    deltas = [each["choices"][0]["delta"] for each in read_data(streamed(events)) if each != "[DONE]"]
    message = whole(events)["choices"][0]["message"]
    assert "".join(delta.get("content", "") for delta in deltas) == (message["content"] or "")
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == message.get(
        "reasoning_content", ""
    )
    arguments: dict[int, str] = {}
    for delta in deltas:
        for call in delta.get("tool_calls", []):
            joined = arguments.get(call["index"], "")
            arguments[call["index"]] = joined + call["function"]["arguments"]
    assert list(arguments.values()) == [
        call["function"]["arguments"] for call in message.get("tool_calls", [])
    ]


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (BadRequest("x: wrong"), 400, "invalid_request_error", None),
        (ContextTooLong(tokens=9, limit=8), 400, "invalid_request_error", "context_length_exceeded"),
        (Unauthorized("no key"), 401, "invalid_request_error", "invalid_api_key"),
        (UnknownModel("gpt-9", served=["smol"]), 404, "invalid_request_error", "model_not_found"),
        (BodyTooLarge(limit_bytes=1), 413, "invalid_request_error", "request_too_large"),
        (Overloaded(message="queue full", retry_after_s=3), 429, "rate_limit_error", "overloaded"),
        (EngineLost("gone"), 500, "server_error", None),
        (InvariantBroken("secret internals"), 500, "server_error", None),
        (NotReady("loading"), 503, "server_error", "not_ready"),
        (Degraded("left stopped"), 503, "server_error", "degraded"),
    ],
)
def test_errors_have_openais_status_and_shape(
    error: KeepwarmError, status: int, kind: str, code: str | None
) -> None:
    reply = openai_chat.error_reply(error, "req_1")
    body = json.loads(reply.body)["error"]
    assert reply.status == status
    assert (body["type"], body["code"], body["param"]) == (kind, code, None)
    assert "secret" not in body["message"]


def test_an_error_after_the_first_byte_ends_the_stream_without_done() -> None:
    failed = Failed(error=to_wire(EngineLost("the rank process went away")))
    chunks = read_data(streamed([*opening(), TextDelta(text="Hel"), failed]))
    assert chunks[-1]["error"]["message"] == "the rank process went away"
    assert "[DONE]" not in chunks
