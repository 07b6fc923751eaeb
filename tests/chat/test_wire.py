"""Requests and events come out as they went in, wherever the stream is cut."""

from __future__ import annotations

import msgspec
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
from keepwarm.chat.wire import (
    Ask,
    Leave,
    Pause,
    Resume,
    ToBackend,
    decode_request,
    encode_ask,
    encode_message,
    encode_said,
    said_reader,
    to_backend_reader,
)
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


SAID: list[tuple[int, list[ChatEvent]]] = [(1, EVENTS), (2, [TextDelta(text="x")]), (300, EVENTS[-1:])]


def asked(frame: bytes) -> msgspec.Raw:
    (message,) = to_backend_reader().feed(frame)
    assert isinstance(message, Ask)
    return message.request


def test_a_request_comes_out_as_it_went_in() -> None:
    assert decode_request(asked(encode_ask(1, REQUEST))) == REQUEST


def test_numbers_that_do_not_fit_are_a_bad_request() -> None:
    tool = ToolSpec(name="n", description="", parameters={"maximum": 10**30})
    request = msgspec.structs.replace(REQUEST, chat=msgspec.structs.replace(REQUEST.chat, tools=(tool,)))
    with pytest.raises(BadRequest, match="tools: an integer does not fit"):
        encode_ask(1, request)


@pytest.mark.parametrize("raw", [b"", b"\xc0", b"\x93\x01\x02\x03", b"\x80"])
def test_what_is_no_request_is_refused(raw: bytes) -> None:
    with pytest.raises(BadRequest, match="internal request"):
        decode_request(raw)


def test_messages_to_a_backend_come_out_as_they_went_in() -> None:
    messages: list[ToBackend] = [Leave(number=1), Pause(number=2**40), Resume(number=3)]
    stream = b"".join(map(encode_message, messages))
    assert list(to_backend_reader().feed(stream)) == messages


def test_events_cut_in_two_at_every_byte_come_out_as_they_went_in() -> None:
    stream = encode_said(SAID) + encode_said(SAID[:1])

    for cut in range(len(stream) + 1):
        reader = said_reader()
        assert [*reader.feed(stream[:cut]), *reader.feed(stream[cut:])] == [SAID, SAID[:1]]


def test_frames_come_out_as_soon_as_they_are_whole() -> None:
    reader = said_reader()

    for said in SAID:
        *most, last = encode_said([said])
        assert list(reader.feed(bytes(most))) == []
        assert list(reader.feed(bytes([last]))) == [[said]]


def test_a_frame_may_hold_nothing() -> None:
    assert list(said_reader().feed(encode_said([]))) == [[]]


@pytest.mark.parametrize("stream", [b"HTTP/1.1 200 OK", b"\x02\0\0\0{}", b"\x01\0\0\0\xc1"])
def test_a_stream_of_something_else_is_our_own_mistake(stream: bytes) -> None:
    with pytest.raises(InvariantBroken):
        list(said_reader().feed(stream))
    with pytest.raises(InvariantBroken):
        list(to_backend_reader().feed(stream))
