"""Responses bodies: what Codex and the SDK send is read, what cannot be served is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from keepwarm.chat.messages import Image, Message, Reasoning, Text, ToolResult, ToolUse
from keepwarm.chat.request import ToolChoice
from keepwarm.dialects import openai_chat, openai_responses
from keepwarm.dialects.openai_responses.form import form_of
from keepwarm.dialects.openai_responses.replayable import sealed
from keepwarm.dialects.openai_responses.tools import ToolAddress
from keepwarm.dialects.turn import Turn
from tests.dialects.refusals import assert_refused

SAMPLE = Path(__file__).parents[1] / "fixtures" / "client_samples" / "codex_responses_1.json"
MINIMAL: dict[str, Any] = {"model": "smol", "input": "Hello"}
LOOK = {"type": "function", "name": "look", "description": "Looks", "parameters": {"type": "object"}}
AGENTS = {
    "type": "namespace",
    "name": "agents",
    "description": "Other agents.",
    "tools": [
        {"type": "function", "name": "spawn", "description": "Starts one."},
        {"type": "function", "name": "wait"},
    ],
}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Patches."}
SEARCH = {"type": "tool_search", "execution": "client", "description": "Finds tools."}


def parse(**fields: Any) -> Turn:
    return openai_responses.parse_turn(json.dumps(MINIMAL | fields).encode())


def messages_of(*items: Any, **fields: Any) -> tuple[Message, ...]:
    return parse(input=list(items), **fields).chat.messages


def said(role: Any, *texts: str) -> Message:
    return Message(role=role, parts=tuple(Text(text=text) for text in texts))


def test_what_codex_sends_is_read_whole() -> None:
    sent = json.loads(SAMPLE.read_text())["body"]
    turn = openai_responses.parse_turn(json.dumps(sent).encode())
    assert [message.role for message in turn.chat.messages] == ["system", "system", "user", "user"]
    names = [tool.name for tool in turn.chat.tools]
    assert len(names) == 12
    assert "multi_agent_v1__spawn_agent" in names
    assert turn.stream
    assert turn.session == sent["prompt_cache_key"]
    assert turn.unserved == ("tool:web_search",)
    form = form_of(turn)
    assert form.summarises
    assert form.seals_reasoning


def test_a_string_is_one_user_message_after_the_instructions() -> None:
    turn = parse(instructions="Be brief.")
    assert turn.chat.messages == (said("system", "Be brief."), said("user", "Hello"))


def test_messages_of_every_shape_are_read() -> None:
    assert messages_of(
        {"role": "developer", "content": "Rules"},
        {"type": "message", "role": "system", "content": [{"type": "input_text", "text": "More"}]},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "See"},
                {"type": "input_image", "image_url": "data:image/png;base64,QUJD"},
                {"type": "input_file", "file_id": "f"},
            ],
        },
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "phase": "commentary",
            "content": [
                {"type": "output_text", "text": "Fine", "annotations": []},
                {"type": "refusal", "refusal": "No"},
            ],
        },
    ) == (
        said("system", "Rules"),
        said("system", "More"),
        Message(
            role="user",
            parts=(
                Text(text="See"),
                Image(source="data:image/png;base64,QUJD"),
                Text(text="[file left out: this model reads text only]"),
            ),
        ),
        said("assistant", "Fine", "No"),
    )


def test_reasoning_words_and_calls_in_a_row_are_one_message() -> None:
    assert messages_of(
        {"role": "user", "content": "Go"},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Looking."}]},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at": 1}'},
        {"type": "function_call", "call_id": "c2", "name": "spawn", "namespace": "agents", "arguments": ""},
        {"type": "custom_tool_call", "call_id": "c3", "name": "apply_patch", "input": "*** Begin"},
        {"type": "function_call_output", "call_id": "c1", "output": "seen"},
        {
            "type": "function_call_output",
            "call_id": "c2",
            "output": [{"type": "input_text", "text": "done"}],
        },
        {"type": "custom_tool_call_output", "call_id": "c3", "output": "patched"},
    ) == (
        said("user", "Go"),
        Message(
            role="assistant",
            parts=(
                Reasoning(text="Hm"),
                Text(text="Looking."),
                ToolUse(id="c1", name="look", arguments={"at": 1}),
                ToolUse(id="c2", name="agents__spawn", arguments={}),
                ToolUse(id="c3", name="apply_patch", arguments={"input": "*** Begin"}),
            ),
        ),
        Message(
            role="user",
            parts=(
                ToolResult(tool_use_id="c1", parts=(Text(text="seen"),)),
                ToolResult(tool_use_id="c2", parts=(Text(text="done"),)),
                ToolResult(tool_use_id="c3", parts=(Text(text="patched"),)),
            ),
        ),
    )


def test_both_dialects_of_openai_read_one_conversation_alike() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    chat = openai_chat.parse_turn(
        json.dumps(
            {
                "model": "smol",
                "tools": [
                    {
                        "type": "function",
                        "function": {
                            "name": "look",
                            "description": "Looks",
                            "parameters": {"type": "object"},
                        },
                    }
                ],
                "messages": [
                    {"role": "system", "content": "Rules"},
                    {"role": "user", "content": "Go"},
                    {
                        "role": "assistant",
                        "content": "Well.",
                        "reasoning_content": "Hm",
                        "tool_calls": [call],
                    },
                    {"role": "tool", "tool_call_id": "c1", "content": "seen"},
                ],
            }
        ).encode()
    ).chat
    items = [
        {"role": "user", "content": "Go"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]},
        {"role": "assistant", "content": "Well."},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "seen"},
    ]
    assert parse(instructions="Rules", input=items, tools=[LOOK]).chat == chat


@pytest.mark.parametrize(
    ("item", "text", "unserved"),
    [
        ({"encrypted_content": sealed("All of it — 🙂")}, "All of it — 🙂", ()),
        ({"encrypted_content": sealed("All"), "summary": [{"text": "Short"}]}, "All", ()),
        (
            {"encrypted_content": "gAAAA", "summary": [{"text": "Short"}]},
            "Short",
            ("reasoning.encrypted_content",),
        ),
        ({"encrypted_content": "keepwarm1:é"}, None, ("reasoning.encrypted_content",)),
        ({"content": [{"type": "reasoning_text", "text": "Raw"}], "summary": [{"text": "Short"}]}, "Raw", ()),
        ({"summary": [{"text": "One"}, {"text": "Two"}]}, "One\n\nTwo", ()),
        ({"summary": []}, None, ()),
    ],
)
def test_thoughts_are_replayed_from_wherever_they_are(
    item: dict[str, Any], text: str | None, unserved: tuple[str, ...]
) -> None:
    turn = parse(input=[{"role": "user", "content": "Go"}, {"type": "reasoning"} | item])
    assert turn.chat.messages[1:] == (
        () if text is None else (Message(role="assistant", parts=(Reasoning(text=text),)),)
    )
    assert turn.unserved == unserved


# Tools


def test_tools_of_a_namespace_get_one_name_and_the_first_tells_of_it() -> None:
    first, second = parse(tools=[AGENTS]).chat.tools
    assert (first.name, first.description) == ("agents__spawn", "Other agents.\n\nStarts one.")
    assert (second.name, second.description) == ("agents__wait", "")


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("agents__spawn", ToolAddress(name="spawn", namespace="agents")),
        ("wait", ToolAddress(name="wait", namespace="agents")),
        ("look", ToolAddress(name="look")),
        ("apply_patch", ToolAddress(name="apply_patch", kind="custom")),
        ("tool_search", ToolAddress(name="tool_search", kind="search")),
        ("mcp__files__read", ToolAddress(name="read", namespace="mcp__files__")),
        ("open", ToolAddress(name="open")),
        ("made_up", ToolAddress(name="made_up")),
    ],
)
def test_a_call_goes_back_to_the_tool_that_was_meant(name: str, address: ToolAddress) -> None:
    inner = [{"type": "function", "name": "read"}, {"type": "function", "name": "open"}]
    files = {"type": "namespace", "name": "mcp__files__", "tools": inner}
    others = {"type": "namespace", "name": "other", "tools": inner[1:]}
    tools = [LOOK, AGENTS, PATCH, SEARCH, files, others]
    assert form_of(parse(tools=tools)).tools.address(name) == address


def test_a_name_that_two_tools_share_means_the_first() -> None:
    twin = {"type": "function", "name": "agents__spawn"}
    turn = parse(tools=[AGENTS, twin])
    assert [tool.name for tool in turn.chat.tools] == ["agents__spawn", "agents__wait"]
    assert turn.unserved == ("tool:name_twice",)


def test_tools_that_a_search_found_are_told_in_place_and_may_be_called() -> None:
    found = {"type": "namespace", "name": "mcp__mail", "tools": [{"type": "function", "name": "send"}]}
    turn = parse(
        tools=[LOOK, SEARCH, {"type": "function", "name": "late", "defer_loading": True}],
        input=[
            {"role": "user", "content": "Mail it"},
            {
                "type": "tool_search_call",
                "call_id": "c1",
                "execution": "client",
                "arguments": {"query": "mail"},
            },
            {"type": "tool_search_output", "call_id": "c1", "status": "completed", "tools": [found]},
        ],
    )
    assert [tool.name for tool in turn.chat.tools] == ["look", "tool_search"]
    assert [tool.name for tool in turn.chat.found_tools] == ["mcp__mail__send"]
    _, call, result = turn.chat.messages
    assert call.parts == (ToolUse(id="c1", name="tool_search", arguments={"query": "mail"}),)
    (part,) = result.parts
    assert isinstance(part, ToolResult)
    (told,) = part.parts
    assert isinstance(told, Text)
    assert json.loads(told.text)["name"] == "mcp__mail__send"
    address = form_of(turn).tools.address("mcp__mail__send")
    assert address == ToolAddress(name="send", namespace="mcp__mail")


def test_without_a_search_of_the_clients_deferred_tools_are_offered() -> None:
    turn = parse(tools=[{"type": "tool_search"}, {"type": "function", "name": "late", "defer_loading": True}])
    assert [tool.name for tool in turn.chat.tools] == ["late"]
    assert turn.unserved == ("tool:tool_search",)


def test_tools_that_come_as_an_item_are_told_there() -> None:
    turn = parse(
        input=[
            {"type": "additional_tools", "role": "developer", "tools": [LOOK]},
            {"role": "user", "content": "Go"},
        ]
    )
    assert [tool.name for tool in turn.chat.found_tools] == ["look"]
    assert turn.chat.messages[0].role == "system"


@pytest.mark.parametrize(
    ("sent", "choice"),
    [
        ("auto", ToolChoice()),
        ("none", ToolChoice(mode="none")),
        ("required", ToolChoice(mode="any")),
        ({"type": "function", "name": "look"}, ToolChoice(mode="named", name="look")),
        ({"type": "custom", "name": "apply_patch"}, ToolChoice(mode="named", name="apply_patch")),
        (
            {"type": "function", "name": "spawn", "namespace": "agents"},
            ToolChoice(mode="named", name="agents__spawn"),
        ),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "look"}]},
            ToolChoice(mode="named", name="look"),
        ),
    ],
)
def test_tool_choices_are_read(sent: Any, choice: ToolChoice) -> None:
    turn = parse(tools=[LOOK, AGENTS, PATCH], tool_choice=sent)
    assert turn.tool_choice == choice
    assert turn.unserved == ()


def test_a_choice_of_what_cannot_run_here_is_free_and_counted() -> None:
    turn = parse(tools=[{"type": "web_search"}], tool_choice={"type": "web_search"})
    assert turn.tool_choice == ToolChoice()
    assert turn.unserved == ("tool:web_search", "tool_choice")


# Options


def test_options_are_read() -> None:
    schema = {"type": "object"}
    turn = parse(
        max_output_tokens=100,
        temperature=0.5,
        top_p=0.9,
        top_logprobs=3,
        include=["message.output_text.logprobs"],
        parallel_tool_calls=False,
        text={"format": {"type": "json_schema", "name": "x", "schema": schema, "strict": True}},
        reasoning={"effort": "none"},
        prompt_cache_key="thread",
        truncation="auto",
        store=True,
        metadata={"a": "b"},
        client_metadata={"x": "y"},
        brand_new=1,
    )
    assert turn.max_output_tokens == 100
    assert (turn.sampling.temperature, turn.sampling.top_p, turn.sampling.num_logprobs) == (0.5, 0.9, 3)
    assert not turn.tool_choice.parallel
    assert turn.output_schema == schema
    assert turn.reasoning is False
    assert turn.session == "thread"
    assert turn.unserved == ("truncation", "brand_new")


def test_an_effort_asks_for_thoughts_and_silence_leaves_it_to_the_model() -> None:
    assert parse(reasoning={"effort": "high"}).reasoning is True
    assert parse(reasoning={"summary": "auto"}).reasoning is None
    assert parse().output_schema is None
    assert parse(text={"format": {"type": "json_object"}}).output_schema == {}
    assert parse().sampling.num_logprobs is None


def test_items_of_tools_that_run_elsewhere_are_counted_and_left_out() -> None:
    turn = parse(
        input=[
            {"role": "user", "content": "Go"},
            {"type": "web_search_call", "id": "ws", "status": "completed", "action": {"type": "search"}},
            {"type": "local_shell_call", "call_id": "c", "status": "completed", "action": {"type": "exec"}},
            {"type": "something_new", "output": {"deep": [1]}},
        ]
    )
    assert turn.chat.messages == (said("user", "Go"),)
    assert turn.unserved == ("item:web_search_call", "item:local_shell_call", "item:something_new")


def test_an_output_without_a_call_is_let_be() -> None:
    (message,) = messages_of({"type": "function_call_output", "call_id": None, "output": "x"})
    assert message.parts == (ToolResult(tool_use_id="", parts=(Text(text="x"),)),)


def test_broken_arguments_in_the_history_never_brick_a_conversation() -> None:
    for sent, kept in [("{oops", "{oops"), ("[1]", "[1]"), ("", {}), (None, {}), ({"a": 1}, {"a": 1})]:
        call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": sent}
        (part,) = messages_of(call)[0].parts
        assert isinstance(part, ToolUse)
        assert part.arguments == kept


def test_what_is_counted_is_what_is_answered() -> None:
    body = json.dumps(MINIMAL | {"instructions": "Rules", "tools": [AGENTS]}).encode()
    assert openai_responses.parse_count(body) == ("smol", openai_responses.parse_turn(body).chat)


@pytest.mark.parametrize(
    ("fields", "field", "said_of_it"),
    [
        ({"model": None}, "model", "required"),
        ({"input": None}, "input", "required"),
        ({"input": []}, "input", "at least one item"),
        ({"input": 5}, "input", "string or array, got 5"),
        ({"input": [5]}, "input.0", "object, got 5"),
        ({"input": [{"type": "web_search_call"}]}, "input", "at least one item"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input.0.role", '"robot" is not one of user,'),
        ({"input": [{"type": "message", "content": "x"}]}, "input.0.role", "required"),
        ({"input": [{"role": "user"}]}, "input.0.content", "required"),
        (
            {"input": [{"role": "user", "content": [{"type": "smell"}]}]},
            "input.0.content.0.type",
            '"smell" is',
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
            "input.0.content.0.text",
            "required",
        ),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input.0", 'send the item, not "msg_1"'),
        ({"input": [{"id": "msg_1"}]}, "input.0", "items are not kept here"),
        ({"input": [{"type": "function_call", "name": "x"}]}, "input.0.call_id", "required"),
        ({"input": [{"type": "function_call", "call_id": "x"}]}, "input.0.name", "required"),
        (
            {"input": [{"type": "function_call_output", "call_id": "x", "output": 5}]},
            "input.0.output",
            "a string or",
        ),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "not kept here: send the whole"),
        ({"conversation": "conv_1"}, "conversation", "not kept here"),
        ({"prompt": {"id": "p"}}, "prompt", "not kept here"),
        ({"background": True}, "background", "not kept here"),
        ({"max_output_tokens": 0}, "max_output_tokens", "at least 1, got 0"),
        ({"temperature": 3}, "temperature", "between 0 and 2, got 3"),
        ({"top_logprobs": 21}, "top_logprobs", "between 0 and 20"),
        ({"tools": [{"type": "function"}]}, "tools.0.name", "required"),
        ({"tools": [{"type": "namespace", "tools": []}]}, "tools.0.name", "required"),
        (
            {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function"}]}]},
            "tools.0.tools.0.name",
            "required",
        ),
        ({"tool_choice": "required"}, "tool_choice", "there are no tools"),
        ({"tool_choice": "maybe"}, "tool_choice", '"maybe" is not one of none, auto, required'),
        ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice", '"x" is not one of the tools'),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice.type", '"mcp" is not one of'),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", '"xml" is not one of text,'),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema", "required"),
        ({"stream": "yes"}, "stream", 'boolean, got "yes"'),
    ],
)
def test_bad_input_is_named(fields: dict[str, Any], field: str, said_of_it: str) -> None:
    error = assert_refused(openai_responses, MINIMAL | fields, field, said_of_it)
    assert error["param"] == field
