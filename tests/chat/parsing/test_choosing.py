"""Each family's template chooses exactly its own format."""

from __future__ import annotations

import pytest

from keepwarm.chat.dsml_template import DEEPSEEK_V4_TEMPLATE, DEEPSEEK_V32_TEMPLATE
from keepwarm.chat.parsing.registry import TOOL_FORMATS, choose_tool_format
from keepwarm.chat.template import PLAIN_TEMPLATE
from tests.chat.facsimiles import FACSIMILES

CHOICES = {
    FACSIMILES["deepseek-v3"]: "deepseek_v3",
    FACSIMILES["deepseek-v3.1"]: "deepseek_v3",
    DEEPSEEK_V32_TEMPLATE: "dsml",
    DEEPSEEK_V4_TEMPLATE: "dsml",
    FACSIMILES["mistral-array"]: "mistral",
    FACSIMILES["mistral-call-id"]: "mistral",
    FACSIMILES["mistral-args"]: "mistral",
    FACSIMILES["glm-4.5"]: "glm",
    FACSIMILES["glm-4.7"]: "glm",
    FACSIMILES["gemma-3"]: "gemma3",
    FACSIMILES["function-gemma"]: "function_gemma",
    FACSIMILES["gemma-4"]: "gemma4",
    FACSIMILES["gpt-oss"]: "harmony",
    FACSIMILES["hermes"]: "hermes",
    FACSIMILES["qwen3-coder"]: "qwen3_coder",
    FACSIMILES["llama-3"]: "llama3_json",
    PLAIN_TEMPLATE: "hermes",
}


@pytest.mark.parametrize(
    ("template", "name"), [pytest.param(*choice, id=choice[1]) for choice in CHOICES.items()]
)
def test_a_template_chooses_its_family_s_format(template: str, name: str) -> None:
    chosen = choose_tool_format("auto", template)

    assert chosen is not None
    assert chosen.name == name


@pytest.mark.parametrize(
    ("template", "name"), [pytest.param(*choice, id=choice[1]) for choice in CHOICES.items()]
)
def test_no_format_of_another_family_fits(template: str, name: str) -> None:
    fitting = [each.name for each in TOOL_FORMATS if each.fits(template)]

    assert fitting == [name] or (fitting == [] and name == "hermes")
