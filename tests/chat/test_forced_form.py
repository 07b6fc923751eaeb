"""Forms from tool choices and schemas: which parts, in which order, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from keepwarm.chat.forced_form import ForcedForms
from keepwarm.chat.messages import Chat, ToolSpec
from keepwarm.chat.parsing.answer_markup import markup_of
from keepwarm.chat.request import ChatRequest, ToolChoice
from keepwarm.core.errors import BadRequest
from keepwarm.core.grammar import Grammar
from keepwarm.core.ids import RequestId, TenantId

LOOK = ToolSpec(name="look", description="", parameters={"type": "object", "properties": {"at": {}}})
WAIT = ToolSpec(name="wait", description="", parameters={})
TOOLS = (LOOK, WAIT)
ANY, NONE, AUTO = (ToolChoice(mode=mode) for mode in ("any", "none", "auto"))
THINKING = "{{ '<think>' }} … '</think>'"


def request(choice: ToolChoice = AUTO, tools: tuple[ToolSpec, ...] = TOOLS, **options: Any) -> ChatRequest:
    return ChatRequest(
        request_id=RequestId("r"),
        tenant=TenantId("t"),
        chat=Chat(messages=(), tools=tools),
        tool_choice=choice,
        **options,
    )


def form(
    wanted: ChatRequest,
    *,
    tool_format: str = "hermes",
    template: str = "",
    prompt_end: str = "",
    control: dict[str, int] | None = None,
) -> Grammar | None:
    markup = markup_of(template, tool_format=tool_format)
    forms = ForcedForms(markup, template=template, control_id=(control or {}).get)
    return forms.form(wanted, prompt_end=prompt_end)


def structure(wanted: ChatRequest, **options: Any) -> dict[str, Any]:
    grammar = form(wanted, **options)
    assert grammar is not None
    assert grammar.kind == "structural_tag"
    inside: dict[str, Any] = json.loads(grammar.source)["format"]
    return inside


def kinds(value: Any) -> list[str]:
    """Every part's type, outside in."""
    if isinstance(value, list):
        return [kind for item in value for kind in kinds(item)]
    if not isinstance(value, dict):
        return []
    if value.get("type") == "json_schema":
        return ["json_schema"]
    own = [value["type"]] if isinstance(value.get("type"), str) else []
    return own + [kind for item in value.values() for kind in kinds(item)]


@pytest.mark.parametrize("choice", [AUTO, NONE, ToolChoice(parallel=False)])
def test_who_may_say_anything_gets_no_form(choice: ToolChoice) -> None:
    assert form(request(choice)) is None
    assert form(request(choice, tools=())) is None


def test_any_tool_is_one_of_all_and_as_many_calls_as_wanted() -> None:
    calls = structure(request(ANY))
    assert [tag["begin"] for tag in calls["tags"]] == [
        '<tool_call>\n{"name": "look", "arguments": ',
        '<tool_call>\n{"name": "wait", "arguments": ',
    ]
    assert calls["tags"][0]["content"]["json_schema"] == LOOK.parameters
    assert calls["tags"][1]["content"]["json_schema"] == {"type": "object"}
    assert (calls["at_least_one"], calls["stop_after_first"]) == (True, False)


def test_a_named_tool_is_called_once_and_so_is_any_without_parallel_calls() -> None:
    named = structure(request(ToolChoice(mode="named", name="wait")))
    assert [tag["begin"] for tag in named["tags"]] == ['<tool_call>\n{"name": "wait", "arguments": ']
    assert named["stop_after_first"]
    assert structure(request(ToolChoice(mode="any", parallel=False)))["stop_after_first"]


def test_a_name_is_spelled_as_json() -> None:
    odd = ToolSpec(name='a"ß', description="", parameters={})
    [tag] = structure(request(ANY, tools=(odd,)))["tags"]
    assert tag["begin"] == '<tool_call>\n{"name": "a\\"ß", "arguments": '


@pytest.mark.parametrize(
    ("choice", "tools", "complaint"),
    [
        (ANY, (), "tool_choice: a call is forced, but tools is empty"),
        (ToolChoice(mode="named", name="gone"), TOOLS, "no tool is named 'gone'; declared are look, wait"),
        (ToolChoice(mode="named", name="gone"), (), "declared are none"),
    ],
)
def test_a_call_of_nothing_is_refused(
    choice: ToolChoice, tools: tuple[ToolSpec, ...], complaint: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        form(request(choice, tools=tools))
    assert complaint in str(refused.value)


def test_of_many_tools_some_are_named_in_a_refusal() -> None:
    many = tuple(ToolSpec(name=f"tool{n}", description="", parameters={}) for n in range(200))
    with pytest.raises(BadRequest, match=r"tool19, … \(200 in all\)"):
        form(request(ToolChoice(mode="named", name="gone"), tools=many))


def test_a_tools_wrong_schema_is_refused_by_name_only_where_it_is_forced() -> None:
    wrong = ToolSpec(name="wrong", description="", parameters={"type": "nonsense"})
    with pytest.raises(BadRequest, match="tools: the schema of 'wrong' has the type 'nonsense'"):
        form(request(ANY, tools=(LOOK, wrong)))
    assert form(request(AUTO, tools=(LOOK, wrong))) is None
    assert form(request(ToolChoice(mode="named", name="look"), tools=(LOOK, wrong))) is not None


def test_where_no_calls_are_read_none_is_forced() -> None:
    with pytest.raises(BadRequest, match="--tool-format none"):
        form(request(ANY), tool_format="none")
    assert kinds(structure(request(output_schema={}), tool_format="none")) == ["json_schema"]


def test_an_answer_by_a_schema_is_that_json_alone() -> None:
    schema = {"type": "object", "properties": {"größe": {"type": "integer"}}}
    answer = structure(request(tools=(), output_schema=schema))
    assert (answer["type"], answer["json_schema"]) == ("json_schema", schema)
    assert structure(request(tools=(), output_schema={}))["json_schema"] == {"type": "object"}
    wrong = form(request(tools=(), output_schema=schema))
    assert wrong is not None
    assert wrong.field == "response_format"


def test_a_free_choice_beside_a_schema_is_a_call_or_text() -> None:
    either = structure(request(AUTO, output_schema={}))
    assert either["type"] == "or"
    assert [part["type"] for part in either["elements"]] == ["tags_with_separator", "json_schema"]


def test_a_forced_call_leaves_no_text_for_a_schema_and_no_tool_leaves_nothing_else() -> None:
    assert structure(request(ANY, output_schema={})) == structure(request(ANY))
    assert kinds(structure(request(NONE, output_schema={}))) == ["json_schema"]


def test_a_thought_that_the_prompt_opened_is_ended_first() -> None:
    before, answer = structure(
        request(tools=(), output_schema={}), template=THINKING, prompt_end="<think>\n"
    )["elements"]
    thought, gap = before["elements"]
    assert (thought["begin"], thought["content"], thought["end"]) == ("", {"type": "any_text"}, "</think>")
    assert gap["type"] == "regex"
    assert answer["type"] == "json_schema"


def test_a_model_that_opens_its_thoughts_itself_may_and_need_not() -> None:
    first, answer = structure(request(ANY), template=THINKING)["elements"]
    assert first["type"] == "optional"
    assert first["content"]["elements"][0]["begin"] == "<think>"
    assert answer["type"] == "tags_with_separator"


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({"template": ""}, {}),
        ({"template": THINKING}, {"reasoning": False}),
        ({"template": THINKING, "prompt_end": "<think>\n\n</think>\n\n"}, {}),
    ],
    ids=["the template knows no thoughts", "it is unwanted", "the prompt closed it"],
)
def test_nothing_stands_before_the_answer_otherwise(options: dict[str, str], asked: dict[str, Any]) -> None:
    assert structure(request(ANY, **asked), **options)["type"] == "tags_with_separator"


def test_control_tokens_that_the_parser_reads_are_text_to_the_grammar() -> None:
    control = {"<tool_call>": 7, "</tool_call>": 8, "<think>": 9, "<|im_end|>": 2}
    calling = form(request(ANY), control=control)
    assert calling is not None
    assert calling.markup_tokens == (7, 8, 9)
    words = form(request(output_schema={}, tools=()), control=control)
    assert words is not None
    assert words.markup_tokens == (9,)
