"""Templates run as Hugging Face's do, and their faults are the caller's to read."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from keepwarm.chat.template import ChatTemplate
from keepwarm.core.errors import BadModel, BadRequest


def run(source: str, *, now: datetime | None = None, tools: Any = None, **message: Any) -> str:
    template = ChatTemplate(source, variables={"bos_token": "<s>"}, now=now)
    return template.render([{"role": "user", **message}], tools=tools, add_generation_prompt=True)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ bos_token }}{{ messages[0].role }}", "<s>user"),
        ("  {% if add_generation_prompt %}\nx\n  {% endif %}\ny", "x\ny"),
        ("{% for n in [1, 2, 3] %}{% if n == 2 %}{% continue %}{% endif %}{{ n }}{% endfor %}", "13"),
        ("{% for n in [1, 2, 3] %}{% if n == 2 %}{% break %}{% endif %}{{ n }}{% endfor %}", "1"),
        ("{{ {'b': '<ü>', 'a': 1} | tojson }}", '{"b": "<ü>", "a": 1}'),
        ("{{ {'b': 1} | tojson(indent=2) }}", '{\n  "b": 1\n}'),
        ("{{ ['ü'] | tojson(ensure_ascii=True) }}", '["\\u00fc"]'),
        ("{% generation %}said{% endgeneration %}", "said"),
        ("{{ tools is none }}{{ documents is none }}", "TrueTrue"),
        ("{{ strftime_now is defined }}", "False"),
    ],
)
def test_the_dialect_is_that_of_hugging_face(source: str, text: str) -> None:
    assert run(source) == text


def test_the_date_is_the_one_passed_in() -> None:
    assert run("{{ strftime_now('%Y') }}", now=datetime(2031, 1, 1)) == "2031"


def test_a_template_says_whether_it_does_anything_with_tools() -> None:
    assert ChatTemplate("{% if tools %}{% endif %}", variables={}).mentions_tools
    assert not ChatTemplate("tools", variables={}).mentions_tools
    assert run("{{ tools is none }}", tools=[]) == "True"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].nothing.at.all }}", "no attribute"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ 'a' + 1 }}", "concatenate"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
    ],
)
def test_a_fault_is_told_to_the_caller(source: str, message: str) -> None:
    with pytest.raises(BadRequest, match=f"refuses this conversation: .*{message}"):
        run(source)


def test_a_template_that_does_not_compile_is_a_bad_model() -> None:
    with pytest.raises(BadModel, match="does not compile"):
        ChatTemplate("{% if %}", variables={})
