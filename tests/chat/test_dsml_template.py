"""Our templates for DeepSeek V3.2 and V4: the families' markup, and what the renderer needs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keepwarm.chat.answer_place import learn_form
from keepwarm.chat.dsml_template import DEEPSEEK_V4_TEMPLATE, DEEPSEEK_V32_TEMPLATE
from keepwarm.chat.messages import Chat, Message, Reasoning, Text, ToolResult, ToolSpec, ToolUse
from keepwarm.chat.render import ChatRenderer
from keepwarm.chat.template import ChatTemplate
from keepwarm.chat.template_messages import MessageForm, MessageWriter
from keepwarm.chat.tokenizer import load_tokenizer
from keepwarm.core.ids import TenantId
from tests.chat.families import byte_level, message, tokenizer_of
from tests.chat.tiny_tokenizers import byte_level_backend, write_folder

BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
TEMPLATES = {"v32": DEEPSEEK_V32_TEMPLATE, "v4": DEEPSEEK_V4_TEMPLATE}
TOOLS = [ToolSpec(name="read", description="Reads.", parameters={"type": "object", "properties": {}})]
CALLS = (
    ToolUse(id="1", name="read", arguments={"path": 'a "b" <c>', "lines": [1, 2], "all": True}),
    ToolUse(id="2", name="stat", arguments={}),
)
RESULTS = (
    ToolResult(tool_use_id="1", parts=(Text(text="one"),)),
    ToolResult(tool_use_id="2", parts=(Text(text="two"),)),
)


def rendered(version: str, *messages: Message, tools: bool = False, thinking: bool = False) -> str:
    variables = {"bos_token": BOS, "eos_token": EOS}
    source = ("{% set thinking = true %}" if thinking else "") + TEMPLATES[version]
    template = ChatTemplate(source, variables=variables)
    writer = MessageWriter(learn_form(template), shield=lambda text: text, places={})
    offered = writer.offer(TOOLS if tools else [])
    return template.render(
        writer.messages(messages, offered), tools=offered.native, add_generation_prompt=True
    )


@pytest.mark.parametrize("version", TEMPLATES)
def test_a_plain_conversation(version: str) -> None:
    text = rendered(
        version,
        message("system", "Be brief."),
        message("user", "a"),
        message("assistant", "b"),
        message("user", "c"),
    )

    assert text == (
        f"{BOS}Be brief.<｜User｜>a<｜Assistant｜></think>b{EOS}<｜User｜>c<｜Assistant｜></think>"
    )


@pytest.mark.parametrize(("version", "block"), [("v32", "function_calls"), ("v4", "tool_calls")])
def test_calls_are_dsml(version: str, block: str) -> None:
    text = rendered(version, message("user", "go"), message("assistant", "I look.", *CALLS))

    assert (
        f"</think>I look.\n\n<｜DSML｜{block}>\n"
        '<｜DSML｜invoke name="read">\n'
        '<｜DSML｜parameter name="path" string="true">a "b" <c></｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="lines" string="false">[1, 2]</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="all" string="false">true</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n"
        '<｜DSML｜invoke name="stat">\n'
        "</｜DSML｜invoke>\n"
        f"</｜DSML｜{block}>{EOS}"
    ) in text


def test_results_of_v32_stand_in_one_block_and_the_answer_follows_at_once() -> None:
    text = rendered("v32", message("user", "go"), message("assistant", *CALLS), message("user", *RESULTS))

    assert text.endswith(
        f"{EOS}\n\n<function_results>\n<result>one</result>\n<result>two</result>\n</function_results>\n\n</think>"
    )


def test_results_of_v4_are_a_user_s_message() -> None:
    text = rendered(
        "v4", message("user", "go"), message("assistant", *CALLS), message("user", *RESULTS, "be brief")
    )

    assert text.endswith(
        f"{EOS}<｜User｜><tool_result>one</tool_result>\n\n<tool_result>two</tool_result>\n\nbe brief"
        "<｜Assistant｜></think>"
    )


@pytest.mark.parametrize("version", TEMPLATES)
@pytest.mark.parametrize("system", [(), (message("system", "Be brief."),)], ids=["bare", "system"])
def test_tools_are_described_once_before_the_first_question(
    version: str, system: tuple[Message, ...]
) -> None:
    text = rendered(version, *system, message("user", "a"), message("assistant", "b"), tools=True)

    assert text.count('"name": "read"') == 1
    assert (
        text.index("Be brief." if system else BOS) < text.index('"name": "read"') < text.index("<｜User｜>")
    )


def test_v32_shows_the_thoughts_since_the_last_question_and_v4_with_tools_all() -> None:
    old = message("assistant", Reasoning(text="old thought"), "b")
    new = message("assistant", Reasoning(text="new thought"), CALLS[0])
    messages = (message("user", "a"), old, message("user", "c"), new, message("user", RESULTS[0]))

    v32 = rendered("v32", *messages, tools=True, thinking=True)
    v4 = rendered("v4", *messages, tools=True, thinking=True)

    assert "old thought" not in v32
    assert "<｜Assistant｜></think>b" in v32
    assert "<think>new thought</think>\n\n<｜DSML｜" in v32
    assert "<think>old thought</think>b" in v4
    assert "<think>new thought</think>\n\n<｜DSML｜" in v4
    assert v32.endswith("<think>")
    assert v4.endswith("<think>")


@pytest.mark.parametrize("version", TEMPLATES)
def test_the_templates_need_nothing_special(version: str) -> None:
    template = ChatTemplate(TEMPLATES[version], variables={"bos_token": BOS, "eos_token": EOS})

    assert learn_form(template) == MessageForm(takes_tools=True, takes_system=True, takes_parts=False)


@pytest.mark.parametrize("version", TEMPLATES)
def test_answers_are_replayed_token_by_token_also_after_results(version: str) -> None:
    special = (BOS, EOS)
    plain = ("<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "｜DSML｜")
    tokenizer = tokenizer_of(byte_level(special, plain), TEMPLATES[version], bos=BOS, eos=EOS)
    renderer = ChatRenderer(tokenizer)
    tenant = TenantId("t")
    messages = [message("user", "go")]
    for number, answer in enumerate([(Text(text="I look."), CALLS[0]), (Text(text="Done."),)]):
        prompt = renderer.render(tenant, Chat(messages=tuple(messages), tools=tuple(TOOLS)))
        spelled = [tokenizer.encode(letter).tolist()[0] for letter in f"answer{number}"]
        renderer.remember(tenant, prompt, answer, spelled)
        messages.append(message("assistant", *answer))
        messages.append(message("user", RESULTS[0]) if number == 0 else message("user", "more"))

        later = renderer.render(tenant, Chat(messages=tuple(messages), tools=tuple(TOOLS)))

        assert later.num_replayed_tokens == 7 * (number + 1)
        start = [*prompt.tokens.tolist(), *spelled]
        assert later.tokens.tolist()[: len(start)] == start


@pytest.mark.parametrize(("model_type", "template"), [("deepseek_v32", "v32"), ("deepseek_v4", "v4")])
def test_a_folder_of_these_families_without_a_template_gets_ours(
    tmp_path: Path, model_type: str, template: str
) -> None:
    folder = write_folder(tmp_path, byte_level_backend())
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))

    assert load_tokenizer(str(folder)).chat_template == TEMPLATES[template]


def test_a_folder_s_own_template_wins(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, byte_level_backend(), chat_template="its own")
    (folder / "config.json").write_text(json.dumps({"model_type": "deepseek_v32"}))

    assert load_tokenizer(str(folder)).chat_template == "its own"


def test_a_person_cannot_write_the_markup_s_own_token() -> None:
    tokenizer = tokenizer_of(byte_level((BOS, EOS), ("｜DSML｜",)), DEEPSEEK_V4_TEMPLATE, bos=BOS, eos=EOS)

    assert tokenizer.control_id("｜DSML｜") is not None
    assert tokenizer.control_id("｜DSML｜") not in tokenizer.encode("<｜DSML｜invoke>").tolist()
