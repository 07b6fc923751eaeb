"""Which parser an answer gets: by the template, the tools, and how its prompt ends."""

from __future__ import annotations

import pytest

from keepwarm.chat.events import Delta, ReasoningDelta, TextDelta, ToolCallStart
from keepwarm.chat.parsing.answer_markup import AnswerMarkup, markup_of
from keepwarm.core.errors import BadSetting
from tests.chat.facsimiles import FACSIMILES
from tests.chat.parsing.reading import TOOLS

LS = '<tool_call>{"name": "Bash", "arguments": {}}</tool_call>'
HARMONY_ANSWER = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes."


def parsed(markup: AnswerMarkup, text: str, *, with_tools: bool = True, prompt_end: str = "") -> list[Delta]:
    tools = TOOLS if with_tools else ()
    parser = markup.parser(tools, prompt_end=prompt_end, new_call_id=lambda: "call_1")
    return [*parser.feed(text), *parser.finish()]


def test_an_unknown_format_is_refused_with_the_names_of_all() -> None:
    with pytest.raises(BadSetting, match=r"--tool-format qwen: must be one of auto, none, .*hermes"):
        markup_of("", tool_format="qwen")


def test_a_template_without_tools_speaks_what_the_preamble_asks_for() -> None:
    markup = markup_of("{{ messages }}", tool_format="auto")

    assert markup.name == "hermes"
    assert any(isinstance(delta, ToolCallStart) for delta in parsed(markup, LS))


@pytest.mark.parametrize(("tool_format", "with_tools"), [("auto", False), ("none", True)])
def test_without_tools_or_a_format_markup_is_text_and_a_thought_is_none(
    tool_format: str, with_tools: bool
) -> None:
    markup = markup_of(FACSIMILES["hermes"], tool_format=tool_format)

    deltas = parsed(markup, f"<think>Hm.</think>{LS}", with_tools=with_tools)

    assert deltas == [ReasoningDelta(text="Hm."), TextDelta(text=LS)]
    assert markup.control_texts(TOOLS if with_tools else ()) == {"<think>", "</think>"}


def test_markup_that_frames_text_is_read_without_tools_too() -> None:
    markup = markup_of(FACSIMILES["gpt-oss"], tool_format="auto")

    deltas = parsed(markup, HARMONY_ANSWER, with_tools=False)

    assert deltas == [ReasoningDelta(text="Hm."), TextDelta(text="Yes.")]
    assert "<|channel|>" in markup.control_texts(())


@pytest.mark.parametrize(
    ("prompt_end", "text", "deltas"),
    [
        ("assistant\n<think>\n", "Hm.</think>\nYes.", [ReasoningDelta(text="Hm."), TextDelta(text="Yes.")]),
        ("assistant\n<think>\n\n</think>\n\n", "Say </think>.", [TextDelta(text="Say </think>.")]),
        ("assistant\n", "Hm.\n</think>\n\nYes.", [TextDelta(text="Hm.\n"), TextDelta(text="Yes.")]),
    ],
)
def test_how_the_prompt_ends_says_where_the_answer_begins(
    prompt_end: str, text: str, deltas: list[Delta]
) -> None:
    markup = markup_of("{{ '<think>' + '</think>' }}", tool_format="none")

    assert parsed(markup, text, prompt_end=prompt_end) == deltas
