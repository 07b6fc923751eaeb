"""Chat Completions: tools of every kind and how they are chosen, the answer's form, thinking."""

from __future__ import annotations

import json
from typing import Any

import pytest

from keepwarm.chat.events import ChatEvent, ToolCallArguments, ToolCallEnd, ToolCallStart
from keepwarm.chat.messages import Message, Text, ToolUse
from keepwarm.chat.request import ToolChoice
from keepwarm.dialects import openai_chat
from keepwarm.dialects.collected import Collected
from keepwarm.dialects.turn import Turn
from tests.dialects.answers import HEAD, finished, opening
from tests.dialects.refusals import assert_refused
from tests.dialects.sse_reader import read_data

MINIMAL: dict[str, Any] = {"model": "smol", "messages": [{"role": "user", "content": "Hello"}]}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}
LOOK = {"type": "function", "function": {"name": "look", "parameters": SCHEMA, "strict": True}}
WAIT = {"type": "function", "function": {"name": "wait"}}
GRAMMAR = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "a+"}}
PATCH = {"type": "custom", "custom": {"name": "patch", "description": "Patches.", "format": GRAMMAR}}


def parse(**fields: Any) -> Turn:
    return openai_chat.parse_turn(json.dumps(MINIMAL | fields).encode())


def streamed(turn: Turn, events: list[ChatEvent]) -> list[Any]:
    stream = openai_chat.open_stream(HEAD, turn)
    chunks = read_data(b"".join(stream.feed(event) for event in events))
    return [chunk["choices"][0] for chunk in chunks if chunk != "[DONE]"]


def whole(turn: Turn, events: list[ChatEvent]) -> Any:
    collected = Collected()
    for event in events:
        collected.feed(event)
    return json.loads(openai_chat.whole_answer(HEAD, turn, collected))["choices"][0]


def a_call(name: str, *pieces: str) -> list[ChatEvent]:
    arguments: list[ChatEvent] = [ToolCallArguments(json=piece) for piece in pieces]
    return [
        *opening(),
        ToolCallStart(id="call_1", name=name),
        *arguments,
        ToolCallEnd(),
        finished("tool_use"),
    ]


@pytest.mark.parametrize(
    ("sent", "choice"),
    [
        ("none", ToolChoice(mode="none")),
        ("auto", ToolChoice()),
        ("required", ToolChoice(mode="any")),
        (None, ToolChoice()),
        ({"type": "function", "function": {"name": "look"}}, ToolChoice(mode="named", name="look")),
        ({"type": "custom", "custom": {"name": "patch"}}, ToolChoice(mode="named", name="patch")),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [LOOK]}},
            ToolChoice(mode="named", name="look"),
        ),
    ],
)
def test_tool_choices_are_read(sent: Any, choice: ToolChoice) -> None:
    turn = parse(tools=[LOOK, WAIT, PATCH], tool_choice=sent)
    assert turn.tool_choice == choice
    assert turn.unserved == ()


def test_a_choice_among_some_tools_is_one_among_all_and_counted() -> None:
    allowed = {"mode": "auto", "tools": [LOOK, WAIT]}
    turn = parse(tools=[LOOK, WAIT, PATCH], tool_choice={"type": "allowed_tools", "allowed_tools": allowed})
    assert turn.tool_choice == ToolChoice()
    assert turn.unserved == ("tool_choice.allowed_tools",)


def test_one_call_at_a_time_may_be_asked_for() -> None:
    turn = parse(tools=[LOOK], tool_choice="required", parallel_tool_calls=False)
    assert turn.tool_choice == ToolChoice(mode="any", parallel=False)


@pytest.mark.parametrize(
    ("sent", "schema"),
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, {}),
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}, SCHEMA),
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}, SCHEMA),
    ],
)
def test_the_answers_form_is_read(sent: Any, schema: Any) -> None:
    assert parse(response_format=sent).output_schema == schema


@pytest.mark.parametrize(
    ("fields", "reasoning"),
    [
        ({}, None),
        ({"reasoning_effort": "high"}, True),
        ({"reasoning_effort": "minimal"}, True),
        ({"reasoning_effort": "none"}, False),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False),
        ({"chat_template_kwargs": {"thinking": True}}, True),
        ({"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "high"}, False),
        ({"chat_template_kwargs": {"other": 1}, "reasoning_effort": "low"}, True),
    ],
)
def test_whether_to_think_is_read(fields: dict[str, Any], reasoning: bool | None) -> None:
    turn = parse(**fields)
    assert turn.reasoning is reasoning
    assert turn.unserved == ()


def test_content_may_be_a_list_in_every_role() -> None:
    content = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    roles = ("system", "developer", "user", "assistant")
    messages = [{"role": role, "content": content} for role in roles]
    for message in parse(messages=messages).chat.messages:
        assert message.parts == (Text(text="a"), Text(text="b"))


def test_content_that_cannot_be_read_is_told_of_and_counted() -> None:
    content = [
        {"type": "file", "file": {"file_id": "f"}},
        {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "wav"}},
        {"type": "image_url", "image_url": {"url": "data:,"}},
    ]
    turn = parse(messages=[{"role": "user", "content": content}])
    first, second, _ = turn.chat.messages[0].parts
    assert first == Text(text="[file left out: this model reads text only]")
    assert second == Text(text="[audio left out: this model reads text only]")
    assert turn.unserved == ("part:file", "part:input_audio", "part:image_url")


# Custom tools


def test_a_custom_tool_is_a_function_of_one_text() -> None:
    call = {"id": "c1", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}}
    messages = [*MINIMAL["messages"], {"role": "assistant", "tool_calls": [call]}]
    turn = parse(tools=[PATCH], messages=messages)
    (spec,) = turn.chat.tools
    assert spec.description == "Patches.\n\nThe input follows this regex grammar:\na+"
    assert turn.chat.messages[1] == Message(
        role="assistant", parts=(ToolUse(id="c1", name="patch", arguments={"input": "*** Begin"}),)
    )


def test_a_call_of_a_custom_tool_is_told_in_its_own_form() -> None:
    turn = parse(tools=[PATCH, LOOK])
    events = a_call("patch", '{"input": "*** Be', 'gin\\n"}')
    deltas = [choice["delta"] for choice in streamed(turn, events)][1:-1]
    start = {"index": 0, "id": "call_1", "type": "custom", "custom": {"name": "patch", "input": ""}}
    assert deltas == [
        {"tool_calls": [start]},
        {"tool_calls": [{"index": 0, "custom": {"input": "*** Be"}}]},
        {"tool_calls": [{"index": 0, "custom": {"input": "gin\n"}}]},
    ]
    custom = {"id": "call_1", "type": "custom", "custom": {"name": "patch", "input": "*** Begin\n"}}
    assert whole(turn, events)["message"]["tool_calls"] == [custom]


def test_a_custom_call_of_another_shape_is_told_at_its_end() -> None:
    deltas = [choice["delta"] for choice in streamed(parse(tools=[PATCH]), a_call("patch", '{"x": "y"}'))]
    assert deltas[2] == {"tool_calls": [{"index": 0, "custom": {"input": "y"}}]}


# The older functions

FUNCTIONS = [{"name": "look", "description": "Looks", "parameters": SCHEMA}]


@pytest.mark.parametrize(
    ("sent", "choice"),
    [
        (None, ToolChoice(parallel=False)),
        ("auto", ToolChoice(parallel=False)),
        ("none", ToolChoice(mode="none", parallel=False)),
        ({"name": "look"}, ToolChoice(mode="named", name="look", parallel=False)),
    ],
)
def test_functions_are_tools_of_which_one_is_called(sent: Any, choice: ToolChoice) -> None:
    turn = parse(functions=FUNCTIONS, function_call=sent)
    assert [tool.name for tool in turn.chat.tools] == ["look"]
    assert turn.tool_choice == choice


def test_a_call_of_a_function_is_told_in_the_older_form() -> None:
    turn = parse(functions=FUNCTIONS)
    choices = streamed(turn, a_call("look", '{"n":', "1}"))
    assert [choice["delta"] for choice in choices] == [
        {"role": "assistant", "content": ""},
        {"function_call": {"name": "look", "arguments": ""}},
        {"function_call": {"arguments": '{"n":'}},
        {"function_call": {"arguments": "1}"}},
        {},
    ]
    assert choices[-1]["finish_reason"] == "function_call"
    answer = whole(turn, a_call("look", '{"n":1}'))
    assert answer["message"]["function_call"] == {"name": "look", "arguments": '{"n":1}'}
    assert answer["finish_reason"] == "function_call"
    assert "tool_calls" not in answer["message"]


@pytest.mark.parametrize(
    ("fields", "field", "said"),
    [
        ({"tool_choice": "required"}, "tool_choice", "there are no tools"),
        ({"tool_choice": "maybe", "tools": [LOOK]}, "tool_choice", '"maybe" is not one of none, auto'),
        (
            {"tool_choice": {"type": "function", "function": {"name": "go"}}, "tools": [LOOK]},
            "tool_choice",
            '"go" is not one of the tools',
        ),
        ({"tool_choice": {"type": "magic"}}, "tool_choice.type", '"magic" is not one of function,'),
        ({"response_format": {"type": "xml"}}, "response_format.type", '"xml" is not one of text,'),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema", "required"),
        ({"functions": FUNCTIONS, "function_call": 5}, "function_call", "string or object, got 5"),
        ({"functions": FUNCTIONS, "function_call": "go"}, "function_call", "none, auto or"),
        ({"functions": FUNCTIONS, "function_call": {"name": "go"}}, "function_call", '"go" is not one of'),
        ({"tools": [{"type": "custom"}]}, "tools.0.custom", "required"),
    ],
)
def test_bad_input_is_named(fields: dict[str, Any], field: str, said: str) -> None:
    assert_refused(openai_chat, MINIMAL | fields, field, said)
