"""What each family's template takes of calls, and that a conversation gets through in that form."""

from __future__ import annotations

import re
from typing import Any

import pytest

from keepwarm.chat.answer_place import learn_form
from keepwarm.chat.messages import Message, Reasoning, Text, ToolResult, ToolSpec, ToolUse
from keepwarm.chat.template import ChatTemplate
from keepwarm.chat.template_messages import MessageForm, MessageWriter
from tests.chat.facsimiles import FACSIMILES
from tests.chat.families import message

ALIKE = MessageForm(takes_tools=True, takes_system=True, takes_parts=False)
TOOLS = [ToolSpec(name="read", description="Reads a file.", parameters={"type": "object", "properties": {}})]


def template_of(name: str) -> ChatTemplate:
    return ChatTemplate(FACSIMILES[name], variables={"bos_token": "<s>", "eos_token": "</s>"})


def call(number: int, arguments: dict[str, Any] | str | None = None) -> ToolUse:
    default = {"path": f"file{number}", "lines": [number, None, True]}
    return ToolUse(
        id=f"toolu_{number:024}", name=f"read{number}", arguments=default if arguments is None else arguments
    )


def result(number: int) -> ToolResult:
    return ToolResult(tool_use_id=f"toolu_{number:024}", parts=(Text(text=f"content{number}"),))


def rendered(name: str, *messages: Message) -> str:
    template = template_of(name)
    writer = MessageWriter(learn_form(template), shield=lambda text: text, places={})
    return template.render(
        writer.messages(messages, TOOLS), tools=writer.tools(TOOLS), add_generation_prompt=True
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
