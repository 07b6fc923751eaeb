"""Requests and events come out as they went in, wherever the stream is cut."""

from __future__ import annotations

import pytest

from keepwarm.chat.events import (
    Accepted,
    Admitted,
    ChatEvent,
    Failed,
    Finished,
    LogprobOf,
    ReasoningDelta,
    TextDelta,
    Timings,
    TokenReport,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)
from keepwarm.chat.messages import Chat, Image, Message, Reasoning, Text, ToolResult, ToolSpec, ToolUse
from keepwarm.chat.request import ChatRequest
from keepwarm.chat.wire import EventDecoder, decode_request, encode_events, encode_request
from keepwarm.core.errors import BadRequest, InvariantBroken, Overloaded, to_wire
from keepwarm.core.ids import RequestId, TenantId
from keepwarm.core.sampling import Sampling

_LOGPROB = LogprobOf(token="h", token_bytes=b"h\xff", logprob=-0.25)
EVENTS: list[ChatEvent] = [
    Accepted(prompt_tokens=7),
    Admitted(cached_tokens=3),
    ReasoningDelta(text="hm"),
    TextDelta(text="größe 🎈", logprobs=(TokenReport(chosen=_LOGPROB, top=(_LOGPROB,)),)),
    ToolCallStart(id="1", name="weather"),
    ToolCallArguments(json='{"city": "Ulm"}'),
    ToolCallEnd(),
    Finished(
        reason="stop_string",
        stop_string="END",
        usage=Usage(prompt_tokens=7, cached_tokens=3, output_tokens=2),
        timings=Timings(admitted_s=0.5, first_token_s=None, total_s=1.5),
    ),
    Failed(error=to_wire(Overloaded(message="busy", retry_after_s=3.0))),
]
REQUEST = ChatRequest(
    request_id=RequestId("r1"),
    tenant=TenantId("ada"),
    chat=Chat(
        messages=(
            Message(role="system", parts=(Text(text="s"),)),
            Message(role="user", parts=(Text(text=""), Image(source="data:,"))),
            Message(
                role="assistant",
                parts=(
                    Reasoning(text="hm", signature="x"),
                    ToolUse(id="1", name="n", arguments={"a": [1, None, {"b": 2.5}]}),
                    ToolUse(id="2", name="n", arguments="{broken"),
                ),
            ),
            Message(
                role="user", parts=(ToolResult(tool_use_id="1", parts=(Text(text="r"),), is_error=True),)
            ),
        ),
        tools=(ToolSpec(name="n", description="d", parameters={"type": "object"}),),
    ),
    sampling=Sampling(temperature=0.5, seed=1, num_logprobs=2),
    max_output_tokens=9,
    stop=("a", "b"),
    session="s",
    use_cache=False,
)


def test_a_request_comes_out_as_it_went_in() -> None:
    assert decode_request(encode_request(REQUEST)) == REQUEST


@pytest.mark.parametrize("cut", [0, 1, -1])
def test_a_body_that_is_no_request_is_refused(cut: int) -> None:
    body = encode_request(REQUEST)

    with pytest.raises(BadRequest, match="internal request"):
        decode_request(body[:cut] if cut >= 0 else b"\x93" + body)


def test_events_cut_in_two_at_every_byte_come_out_as_they_went_in() -> None:
    stream = encode_events(EVENTS)

    for cut in range(len(stream) + 1):
        decoder = EventDecoder()
        assert [*decoder.feed(stream[:cut]), *decoder.feed(stream[cut:])] == EVENTS


def test_events_come_out_as_soon_as_they_are_whole() -> None:
    decoder = EventDecoder()
    stream = b"".join(encode_events([event]) for event in EVENTS)
    assert stream == encode_events(EVENTS)

    seen: list[ChatEvent] = []
    for event in EVENTS:
        *most, last = encode_events([event])
        assert list(decoder.feed(bytes(most))) == []
        seen += decoder.feed(bytes([last]))

    assert seen == EVENTS


def test_no_events_are_no_bytes() -> None:
    assert encode_events([]) == b""


@pytest.mark.parametrize("stream", [b"HTTP/1.1 200 OK", b"\x02\0\0\0{}", b"\x01\0\0\0\xc1"])
def test_a_stream_of_something_else_is_our_own_mistake(stream: bytes) -> None:
    with pytest.raises(InvariantBroken):
        list(EventDecoder().feed(stream))
