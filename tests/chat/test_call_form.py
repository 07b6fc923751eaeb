"""What each family's template takes of calls, and that a conversation gets through in that form."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepwarm.chat.answer_place import learn_form
from keepwarm.chat.conversation import fold
from keepwarm.chat.dsml_template import DEEPSEEK_V4_TEMPLATE, DEEPSEEK_V32_TEMPLATE
from keepwarm.chat.messages import Chat, Message, Part, Reasoning, Text, ToolResult, ToolSpec, ToolUse
from keepwarm.chat.template import ChatTemplate
from keepwarm.chat.template_messages import MessageForm, MessageWriter
from tests.chat.facsimiles import FACSIMILES
from tests.chat.families import message

TEMPLATES = {**FACSIMILES, "deepseek-v3.2": DEEPSEEK_V32_TEMPLATE, "deepseek-v4": DEEPSEEK_V4_TEMPLATE}
ALIKE = MessageForm(takes_tools=True, takes_system=True, takes_parts=False)
TOOLS = [ToolSpec(name="read", description="Reads a file.", parameters={"type": "object", "properties": {}})]


@cache
def template_of(name: str) -> ChatTemplate:
    return ChatTemplate(TEMPLATES[name], variables={"bos_token": "<s>", "eos_token": "</s>"})


@cache
def form_of(name: str) -> MessageForm:
    return learn_form(template_of(name))


def call(number: int, arguments: dict[str, Any] | str | None = None) -> ToolUse:
    default = {"path": f"file{number}", "lines": [number, None, True]}
    return ToolUse(
        id=f"toolu_{number:024}", name=f"read{number}", arguments=default if arguments is None else arguments
    )


def result(number: int) -> ToolResult:
    return ToolResult(tool_use_id=f"toolu_{number:024}", parts=(Text(text=f"content{number}"),))


def rendered(name: str, *messages: Message) -> str:
    template = template_of(name)
    writer = MessageWriter(form_of(name), shield=lambda text: text, places={})
    offered = writer.offer(TOOLS)
    return template.render(
        writer.messages(messages, offered), tools=offered.native, add_generation_prompt=True
    )


@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-v3.1"])
def test_a_template_that_joins_arguments_to_text_gets_them_as_text(name: str) -> None:
    assert learn_form(template_of(name)).arguments_as_text

    text = rendered(name, message("user", "go"), message("assistant", "I read.", call(1)))

    assert '{"path": "file1", "lines": [1, null, true]}' in text


@pytest.mark.parametrize("name", ["glm-4.5", "glm-4.7", "qwen3-coder", "gemma-4", "gpt-oss", "hermes"])
def test_a_template_that_walks_over_arguments_gets_an_object(name: str) -> None:
    assert not learn_form(template_of(name)).arguments_as_text


def test_a_template_that_takes_either_gets_an_object() -> None:
    assert not learn_form(template_of("mistral-args")).arguments_as_text


@pytest.mark.parametrize("name", [name for name in FACSIMILES if name != "gemma-3"])
def test_broken_arguments_of_the_past_render_everywhere(name: str) -> None:
    broken = call(1, '{"path": "unfin')

    text = rendered(name, message("user", "go"), message("assistant", broken), message("user", result(1)))

    assert "read1" in text
    assert "unparsed_arguments" in text


@pytest.mark.parametrize("name", ["mistral-array", "mistral-call-id"])
def test_ids_are_shortened_where_a_template_insists_and_a_result_keeps_that_of_its_call(name: str) -> None:
    assert not learn_form(template_of(name)).takes_long_call_ids

    text = rendered(
        name,
        message("user", "go"),
        message("assistant", call(1), call(2)),
        message("user", result(1), result(2)),
    )

    assert "toolu_" not in text
    ids = re.findall(r"(?<![0-9a-f])[0-9a-f]{9}(?![0-9a-f])", text)
    assert len(ids) == 4
    assert ids[:2] == ids[2:]


def test_an_id_that_is_short_already_stays() -> None:
    use = ToolUse(id="aB3dE6gH9", name="read", arguments={})

    text = rendered("mistral-call-id", message("user", "go"), message("assistant", use))

    assert "[CALL_ID]aB3dE6gH9[ARGS]" in text


@pytest.mark.parametrize("name", ["gpt-oss", "llama-3"])
def test_several_calls_become_messages_of_one_each_with_its_result(name: str) -> None:
    assert not learn_form(template_of(name)).takes_parallel_calls

    text = rendered(
        name,
        message("user", "go"),
        message("assistant", "Both.", call(1), call(2)),
        message("user", result(2), result(1), "and then?"),
    )

    order = [text.index(mark) for mark in ("read1", "content1", "read2", "content2", "and then?")]
    assert order == sorted(order)


def test_calls_without_results_are_not_lost_where_a_message_takes_one() -> None:
    text = rendered("gpt-oss", message("user", "go"), message("assistant", call(1), call(2)))

    assert text.index("read1") < text.index("read2")


@pytest.mark.parametrize("name", ["deepseek-v3.1", "mistral-array", "glm-4.5", "gemma-4", "hermes"])
def test_several_calls_stay_in_one_message_where_a_template_takes_them(name: str) -> None:
    assert learn_form(template_of(name)).takes_parallel_calls


def test_text_beside_results_goes_with_the_last_where_roles_must_alternate() -> None:
    assert not learn_form(template_of("mistral-array")).takes_text_after_results

    text = rendered(
        "mistral-array",
        message("user", "go"),
        message("assistant", call(1)),
        message("user", result(1), "be brief"),
    )

    assert "content1\n\nbe brief" in text


def test_text_and_thoughts_of_a_call_go_together_where_a_template_takes_one_of_them() -> None:
    assert not learn_form(template_of("gpt-oss")).takes_text_beside_thoughts

    text = rendered(
        "gpt-oss", message("user", "go"), message("assistant", Reasoning(text="hm"), "I read.", call(1))
    )

    assert "<|channel|>analysis<|message|>hm\n\nI read.<|end|>" in text


def test_a_template_without_tools_is_not_tried() -> None:
    form = learn_form(template_of("gemma-3"))

    assert form == MessageForm(takes_tools=False, takes_system=True, takes_parts=False)


@pytest.mark.parametrize("name", ["glm-4.5", "hermes", "gemma-4", "qwen3-coder", "mistral-args"])
def test_an_easy_template_needs_nothing_special(name: str) -> None:
    assert learn_form(template_of(name)) == ALIKE


@st.composite
def histories(draw: st.DrawFn) -> list[Message]:
    """Conversations as agents have them; results may be missing, out of order, or with words."""
    messages: list[Message] = []
    number = 0
    for turn in range(draw(st.integers(1, 4))):
        messages.append(message("user", f"asked{turn}"))
        for _ in range(draw(st.integers(0, 3))):
            calls = [call(number + index, draw(ARGUMENTS)) for index in range(draw(st.integers(1, 3)))]
            number += len(calls)
            said: list[Part] = [Reasoning(text="thought")] if draw(st.booleans()) else []
            said += [Text(text=f"saying{number}")] if draw(st.booleans()) else []
            messages.append(Message(role="assistant", parts=(*said, *calls)))
            results = draw(st.permutations([result(int(use.id[6:])) for use in calls]))
            words = [f"word{number}"] if draw(st.booleans()) else []
            messages.append(message("user", *results, *words))
        messages.append(message("assistant", f"answer{turn}"))
    return messages


ARGUMENTS: st.SearchStrategy[dict[str, Any] | str] = st.sampled_from(
    [{}, {"a": "b"}, {"list": [1, {"x": None}], "flag": True}, '{"broken', ""]
)


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name != "gemma-3"])
@settings(deadline=None, max_examples=60)
@given(history=histories())
def test_no_history_of_calls_is_refused_or_loses_one(name: str, history: list[Message]) -> None:
    messages = fold(Chat(messages=(*history, message("user", "last")), tools=tuple(TOOLS)))

    text = rendered(name, *messages)

    for part in (part for each in messages for part in each.parts):
        match part:
            case ToolUse():
                assert part.name in text
            case ToolResult():
                assert part.parts[0].text in text  # type: ignore[union-attr] # all are texts
            case Text() if part.text.startswith(("asked", "word", "last")):
                assert part.text in text
