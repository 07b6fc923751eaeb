"""What Claude Code sends and relies on, case by case: the measured list of its requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from keepwarm.chat.messages import Image, Message, Reasoning, Text, ToolResult, ToolUse
from keepwarm.chat.request import ToolChoice
from keepwarm.core.errors import BadRequest
from keepwarm.dialects import anthropic
from keepwarm.dialects.anthropic.blocks import SIGNATURE
from keepwarm.dialects.dialect import DEFAULT_OPTIONS, DialectOptions
from keepwarm.dialects.turn import Turn
from tests.dialects.refusals import assert_refused

SAMPLES = Path(__file__).parents[1] / "fixtures" / "client_samples"
LINE = "x-anthropic-billing-header: cc_version=2.1.332.3eb; cc_entrypoint=sdk-cli;"
SUBAGENT_LINE = f"{LINE} cc_is_subagent=true;"
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
READ = {"name": "Read", "description": "Reads", "input_schema": SCHEMA}
LATE = {"name": "Late", "description": "Found later", "input_schema": SCHEMA, "defer_loading": True}
LATER = LATE | {"name": "Later"}
WEB_SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
MINIMAL: dict[str, Any] = {
    "model": "claude-opus-5",
    "max_tokens": 32_000,
    "messages": [{"role": "user", "content": "Hello"}],
}


def parse(options: DialectOptions = DEFAULT_OPTIONS, **fields: Any) -> Turn:
    return anthropic.parse_turn(json.dumps(MINIMAL | fields).encode(), options)


def sample(name: str) -> Turn:
    body = json.loads((SAMPLES / f"{name}.json").read_text())["body"]
    return anthropic.parse_turn(json.dumps(body).encode())


def system_of(turn: Turn) -> str:
    return "|".join(part.text for part in turn.chat.messages[0].parts if isinstance(part, Text))


def answered(*blocks: Any, result: Any = "ok", **fields: Any) -> Turn:
    """A conversation with an assistant's message of these blocks, and what followed."""
    after = [{"type": "tool_result", "tool_use_id": "t1", "content": result}]
    messages = [*MINIMAL["messages"], {"role": "assistant", "content": list(blocks)}]
    return parse(messages=[*messages, {"role": "user", "content": after}], **fields)


# The attribution line


@pytest.mark.parametrize(
    ("system", "kept", "num_lines"),
    [
        ([LINE, "You are an agent."], "You are an agent.", 1),
        ([f"{LINE}\nYou are an agent.\n{LINE}"], f"You are an agent.\n{LINE}", 1),
        ([f"{LINE}\n\nYou"], "\nYou", 1),
        ([SUBAGENT_LINE, "You"], "You", 1),
        (["You", f"{LINE}\nmore"], "You|more", 1),
        (["You are x-anthropic-billing-header: yes"], "You are x-anthropic-billing-header: yes", 0),
        (["You are an agent."], "You are an agent.", 0),
    ],
)
def test_the_attribution_line_alone_is_taken_off_and_counted(
    system: list[str], kept: str, num_lines: int
) -> None:
    turn = parse(system=[{"type": "text", "text": text} for text in system])
    assert system_of(turn) == kept
    assert turn.normalised == ("attribution",) * num_lines


def test_the_line_is_taken_off_a_system_that_is_a_string_too() -> None:
    assert system_of(parse(system=f"{LINE}\nYou are an agent.")) == "You are an agent."
    assert [message.role for message in parse(system=LINE).chat.messages] == ["user"]


def test_the_line_stays_where_an_operator_wants_it_to_and_elsewhere_than_in_the_system_field() -> None:
    kept = parse(DialectOptions(strip_attribution=False), system=f"{SUBAGENT_LINE}\nYou")
    assert system_of(kept) == f"{SUBAGENT_LINE}\nYou"
    assert kept.normalised == ()
    assert kept.is_subagent
    messages = [{"role": "system", "content": LINE}, {"role": "user", "content": LINE}]
    assert [message.text() for message in parse(messages=messages).chat.messages] == [LINE, LINE]


@pytest.mark.parametrize("name", ["cc_subagent_first", "cc_subagent_explore_first"])
def test_a_subagent_is_known_by_the_line(name: str) -> None:
    assert sample(name).is_subagent
    assert not sample("cc_1_first_request").is_subagent


def test_the_session_is_read_from_the_users_id_and_nothing_else_is() -> None:
    assert sample("cc_1_first_request").session == "00000000-0000-4000-8000-000000000000"
    older = {"user_id": "user_0af_account__session_0a1b-2c"}
    assert parse(metadata=older).session == "0a1b-2c"
    for user_id in ("someone", "[1]", '{"session_id": 5}', 5, None):
        assert parse(metadata={"user_id": user_id}).session == ""


# Options


@pytest.mark.parametrize(
    ("thinking", "reasoning"),
    [
        ({"type": "adaptive", "display": "omitted"}, True),
        ({"type": "enabled", "budget_tokens": 31_999}, True),
        ({"type": "disabled"}, False),
        (None, False),
    ],
)
def test_thinking_is_done_where_it_is_asked_for(thinking: Any, reasoning: bool) -> None:
    turn = parse(thinking=thinking)
    assert turn.reasoning is reasoning
    assert turn.unserved == ()


def test_a_schema_of_the_answer_is_read_from_both_of_its_places() -> None:
    form = {"type": "json_schema", "schema": SCHEMA}
    assert parse(output_config={"effort": "high", "format": form}).output_schema == SCHEMA
    assert parse(output_format=form).output_schema == SCHEMA
    assert parse(output_config={"effort": "low"}).output_schema is None
    title = sample("cc_haiku_title_call")
    assert title.output_schema is not None
    assert title.output_schema["required"] == ["title"]
    assert title.unserved == ()


def test_edits_of_the_context_are_accepted_and_those_not_done_are_counted() -> None:
    edits = [{"type": "clear_thinking_20251015", "keep": "all"}, {"type": "clear_tool_uses_20250919"}]
    turn = parse(context_management={"edits": edits})
    assert turn.unserved == ("context_management:clear_tool_uses_20250919",)
    assert parse(context_management={}).unserved == ()


def test_fields_of_other_services_are_ignored_and_counted() -> None:
    turn = parse(safeguards=[{"type": "x"}], container="c", mcp_servers=[{"name": "m"}], cache_control={})
    assert turn.unserved == ("safeguards", "container", "mcp_servers")


@pytest.mark.parametrize(
    ("sent", "choice"),
    [
        ({"type": "auto"}, ToolChoice()),
        ({"type": "any"}, ToolChoice(mode="any")),
        ({"type": "none"}, ToolChoice(mode="none")),
        ({"type": "tool", "name": "Read"}, ToolChoice(mode="named", name="Read")),
        ({"type": "any", "disable_parallel_tool_use": True}, ToolChoice(mode="any", parallel=False)),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice(parallel=False)),
        (None, ToolChoice()),
    ],
)
def test_tool_choices_are_read(sent: Any, choice: ToolChoice) -> None:
    turn = parse(tools=[READ | {"eager_input_streaming": True}], tool_choice=sent)
    assert turn.tool_choice == choice
    assert turn.unserved == ()


def test_a_forced_search_of_the_web_is_answered_in_words_and_counted() -> None:
    turn = parse(tools=[WEB_SEARCH], tool_choice={"type": "tool", "name": "web_search"})
    assert turn.tool_choice == ToolChoice()
    assert turn.unserved == ("tool:web_search_20250305", "tool_choice")
    assert sample("cc_websearch_subcall").chat.tools == ()


# Deferred tools


def reference(*names: str) -> list[Any]:
    return [{"type": "tool_reference", "tool_name": name} for name in names]


def test_found_tools_are_told_in_place_a_line_each_and_may_be_called() -> None:
    call = {"type": "tool_use", "id": "t1", "name": "ToolSearch", "input": {"query": "late"}}
    choice = {"type": "tool", "name": "Late"}
    turn = answered(call, result=reference("Late", "Later"), tools=[LATE, READ, LATER], tool_choice=choice)
    assert [tool.name for tool in turn.chat.tools] == ["Read"]
    assert [tool.name for tool in turn.chat.found_tools] == ["Late", "Later"]
    assert [tool.name for tool in turn.chat.callable_tools] == ["Read", "Late", "Later"]
    assert turn.tool_choice.name == "Late"
    (part,) = turn.chat.messages[-1].parts
    assert isinstance(part, ToolResult)
    lines = "".join(piece.text for piece in part.parts if isinstance(piece, Text)).splitlines()
    assert [json.loads(line)["name"] for line in lines] == ["Late", "Later"]


def test_a_reference_to_a_tool_that_is_gone_is_told_by_its_name() -> None:
    call = {"type": "tool_use", "id": "t1", "name": "ToolSearch", "input": {}}
    (part,) = answered(call, result=reference("Gone"), tools=[READ]).chat.messages[-1].parts
    assert part == ToolResult(tool_use_id="t1", parts=(Text(text="Tool: Gone\n"),))


def test_deferred_tools_are_offered_where_only_the_providers_search_would_find_them() -> None:
    search = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}
    turn = parse(tools=[search, READ, LATE])
    assert [tool.name for tool in turn.chat.tools] == ["Read", "Late"]
    assert turn.unserved == ("tool:tool_search_tool_regex_20251119",)


# History that must never end a session


@pytest.mark.parametrize(
    ("block", "part"),
    [
        ({"type": "thinking", "thinking": "Hm", "signature": "abc"}, Reasoning(text="Hm", signature="abc")),
        ({"type": "thinking", "thinking": "Hm", "signature": ""}, Reasoning(text="Hm")),
        ({"type": "thinking", "thinking": "Hm"}, Reasoning(text="Hm")),
        ({"type": "thinking", "thinking": "Hm", "signature": SIGNATURE}, Reasoning(text="Hm")),
        ({"type": "thinking", "thinking": "", "signature": "abc"}, None),
        ({"type": "thinking", "signature": "abc"}, None),
        ({"type": "redacted_thinking", "data": "x"}, None),
        ({"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}, None),
        ({"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"type": "x"}]}, None),
        ({"type": "mcp_tool_use", "id": "m", "name": "n", "server_name": "s", "input": {}}, None),
    ],
)
def test_what_an_assistant_once_sent_is_taken_back(block: dict[str, Any], part: Any) -> None:
    call = {"type": "tool_use", "id": "t1", "name": "Read", "input": {"__unparsedToolInput": "{oops"}}
    message = answered(block, call).chat.messages[1]
    use = ToolUse(id="t1", name="Read", arguments={"__unparsedToolInput": "{oops"})
    assert message == Message(role="assistant", parts=(use,) if part is None else (part, use))


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}
PDF = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "QUJD"}}
CALL = {"type": "tool_use", "id": "t1", "name": "Read", "input": {}}


def test_pictures_and_documents_in_results_are_taken_and_counted() -> None:
    turn = answered(CALL, result=[IMAGE, PDF])
    (part,) = turn.chat.messages[-1].parts
    assert isinstance(part, ToolResult)
    picture, document = part.parts
    assert isinstance(picture, Image)
    assert document == Text(text="[document left out: this model reads text only]")
    assert turn.unserved == ("block:image", "block:document")
    assert sample("cc_image_result").unserved == ("block:image",)


@pytest.mark.parametrize(
    "source", [{"type": "url", "url": "https://x/y.png"}, {"type": "file", "file_id": "file_1"}]
)
def test_pictures_by_address_are_taken(source: dict[str, str]) -> None:
    (part,) = answered(CALL, result=[{"type": "image", "source": source}]).chat.messages[-1].parts
    assert isinstance(part, ToolResult)
    assert isinstance(part.parts[0], Image)


def test_an_empty_message_in_the_history_is_let_be_and_the_newest_must_say_something() -> None:
    later = [{"role": "assistant", "content": "Hm?"}, {"role": "user", "content": "Go"}]
    assert parse(messages=[{"role": "user", "content": ""}, *later]).chat.messages[0].parts == ()
    only = [{"role": "user", "content": [{"type": "container_upload", "file_id": "f"}]}]
    with pytest.raises(BadRequest, match=r"messages\.0\.content: must not be empty, got blocks without"):
        parse(messages=only)


def test_system_messages_may_stand_anywhere_as_string_or_list() -> None:
    text = {"type": "text", "text": "Note", "cache_control": {"type": "ephemeral"}}
    for content in ("Note", [text]):
        messages = [*MINIMAL["messages"], {"role": "system", "content": content}]
        chat = parse(messages=messages).chat
        assert chat.messages[-1] == Message(role="system", parts=(Text(text="Note"),))


@pytest.mark.parametrize(
    ("fields", "field", "said"),
    [
        ({"thinking": {"type": "hard"}}, "thinking.type", '"hard" is not one of enabled, adaptive, disabled'),
        ({"thinking": "on"}, "thinking", 'object, got "on"'),
        (
            {"output_config": {"format": {"type": "xml"}}},
            "output_config.format.type",
            "not one of json_schema",
        ),
        ({"output_format": {"type": "json_schema"}}, "output_format.schema", "required"),
        ({"tool_choice": {"type": "any"}}, "tool_choice", "there are no tools"),
        ({"tool_choice": {"type": "maybe"}}, "tool_choice.type", '"maybe" is not one of auto, any'),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name", "required"),
        (
            {"tools": [READ], "tool_choice": {"type": "tool", "name": "Go"}},
            "tool_choice",
            '"Go" is not one of',
        ),
        (
            {"messages": [{"role": "system", "content": [IMAGE]}]},
            "messages.0.content.0.type",
            "not one of text",
        ),
        ({"system": [{"type": "text"}]}, "system.0.text", "required"),
    ],
)
def test_bad_input_is_named(fields: dict[str, Any], field: str, said: str) -> None:
    assert_refused(anthropic, MINIMAL | fields, field, said)
