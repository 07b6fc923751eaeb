"""Answers to feed to the dialects: fixed ones, and a strategy for any that a backend may give."""

from __future__ import annotations

from hypothesis import strategies as st

from keepwarm.chat.events import (
    Accepted,
    Admitted,
    ChatEvent,
    Finished,
    ReasoningDelta,
    StopReason,
    TextDelta,
    Timings,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)
from keepwarm.chat.messages import Chat
from keepwarm.core.sampling import Sampling
from keepwarm.dialects.dialect import AnswerHead
from keepwarm.dialects.turn import Turn

HEAD = AnswerHead(request_id="req_1", model="smol", created_at=1_700_000_000)
TIMINGS = Timings(admitted_s=0.1, first_token_s=0.2, total_s=0.3)


def turn(*, stream: bool = True, include_usage: bool = False) -> Turn:
    return Turn(
        model="smol",
        chat=Chat(messages=()),
        sampling=Sampling(),
        stream=stream,
        include_usage=include_usage,
    )


def finished(
    reason: StopReason = "end", *, stop_string: str | None = None, cached: int = 80, output: int = 5
) -> Finished:
    usage = Usage(prompt_tokens=100, cached_tokens=cached, output_tokens=output)
    return Finished(reason=reason, stop_string=stop_string, usage=usage, timings=TIMINGS)


def opening(cached: int = 80) -> list[ChatEvent]:
    return [Accepted(prompt_tokens=100), Admitted(cached_tokens=cached)]


def said(*texts: str) -> list[ChatEvent]:
    deltas: list[ChatEvent] = [TextDelta(text=text) for text in texts]
    return [*opening(), *deltas, finished()]


def with_everything() -> list[ChatEvent]:
    """Reasoning, text and two calls."""
    return [
        *opening(),
        ReasoningDelta(text="Let me "),
        ReasoningDelta(text="think."),
        TextDelta(text="I will look."),
        ToolCallStart(id="toolu_1", name="Read"),
        ToolCallArguments(json='{"path":'),
        ToolCallArguments(json='"a.txt"}'),
        ToolCallEnd(),
        ToolCallStart(id="toolu_2", name="List"),
        ToolCallEnd(),
        finished("tool_use"),
    ]


_texts = st.text(max_size=8)
_deltas: st.SearchStrategy[list[ChatEvent]] = st.one_of(
    st.builds(lambda text: [TextDelta(text=text)], _texts),
    st.builds(lambda text: [ReasoningDelta(text=text)], _texts),
    st.builds(
        lambda key: [
            ToolCallStart(id="toolu_x", name="Do"),
            ToolCallArguments(json='{"k":"'),
            ToolCallArguments(json=key + '"}'),
            ToolCallEnd(),
        ],
        st.text("abcxyz", max_size=5),
    ),
)


def _answer(groups: list[list[ChatEvent]]) -> list[ChatEvent]:
    deltas: list[ChatEvent] = [event for group in groups for event in group]
    return [*opening(), *deltas, finished()]


any_answer: st.SearchStrategy[list[ChatEvent]] = st.lists(_deltas, max_size=8).map(_answer)
