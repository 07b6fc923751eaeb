"""Deltas, gathered into what a client sends back."""

from __future__ import annotations

from keepwarm.chat.answer_parts import AnswerParts
from keepwarm.chat.events import ReasoningDelta, TextDelta, ToolCallArguments, ToolCallEnd, ToolCallStart
from keepwarm.chat.messages import Reasoning, Text, ToolUse


def test_stretches_of_one_kind_are_one_part_and_arguments_are_decoded() -> None:
    parts = AnswerParts()

    parts.add(
        [ReasoningDelta(text="h"), ReasoningDelta(text="m"), TextDelta(text="I "), TextDelta(text="look")]
    )
    parts.add([ToolCallStart(id="c", name="Read"), ToolCallArguments(json='{"a":')])
    parts.add([ToolCallArguments(json="[1]}"), ToolCallEnd(), TextDelta(text="so")])

    assert parts.all() == (
        Reasoning(text="hm"),
        Text(text="I look"),
        ToolUse(id="c", name="Read", arguments={"a": [1]}),
        Text(text="so"),
    )
    assert parts.num_calls == 1


def test_a_call_that_is_open_is_no_part_yet() -> None:
    parts = AnswerParts()

    parts.add([TextDelta(text=""), ToolCallStart(id="c", name="Read"), ToolCallArguments(json="{")])

    assert parts.all() == ()
    assert parts.num_calls == 1
