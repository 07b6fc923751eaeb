from __future__ import annotations

from datetime import datetime

import pytest

from keepwarm.chat.template import PLAIN_TEMPLATE, ChatTemplate
from keepwarm.core.errors import BadModel, BadRequest


def _render(source: str, *contents: str, now: datetime | None = None, invite: bool = False) -> str:
    template = ChatTemplate(
        source, variables={"bos_token": "<s>", "eos_token": "</s>", "opening": ""}, now=now
    )
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": content} for n, content in enumerate(contents)]
    return template.render(messages, tools=None, add_generation_prompt=invite)


def test_blocks_are_trimmed_as_hugging_faces_are() -> None:
    assert _render("  {% for m in messages %}\n{{ m.content }}\n  {% endfor %}\nend", "a", "b") == "a\nb\nend"


def test_tojson_escapes_nothing_and_takes_pythons_options() -> None:
    assert _render("{{ messages[0] | tojson }}", "<é>'") == '{"role": "user", "content": "<é>\'"}'
    assert _render("{{ [1, 2] | tojson(indent=2) }}", "a") == "[\n  1,\n  2\n]"


def test_loops_can_be_left_and_generation_blocks_are_transparent() -> None:
    source = (
        "{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    )
    assert _render(source, "a", "b") == "a"


def test_what_a_template_says_against_a_conversation_reaches_the_caller() -> None:
    with pytest.raises(BadRequest, match="roles must alternate"):
        _render("{{ raise_exception('roles must alternate') }}", "a")


@pytest.mark.parametrize("source", ["{{ messages[0].content + 1 }}", "{{ none.x.y }}", "{{ 1 // 0 }}"])
def test_a_fault_inside_a_template_is_a_bad_request_too(source: str) -> None:
    with pytest.raises(BadRequest, match="chat template"):
        _render(source, "a")


@pytest.mark.parametrize(
    "source",
    ["{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ raise_exception.__globals__.x }}"],
)
def test_a_template_can_reach_nothing_and_change_nothing(source: str) -> None:
    with pytest.raises(BadRequest):
        _render(source, "a")


def test_a_template_that_does_not_compile_is_a_bad_model() -> None:
    with pytest.raises(BadModel, match="does not compile"):
        ChatTemplate("{% for %}", variables={})


def test_the_date_is_the_one_passed_in() -> None:
    source = "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% else %}none{% endif %}"
    assert _render(source, "a", now=datetime(2026, 3, 1)) == "01 Mar 2026"
    assert _render(source, "a") == "none"


def test_tools_and_documents_are_none_when_absent() -> None:
    assert _render("{{ tools is none }} {{ documents is none }}", "a") == "True True"


def test_only_a_template_that_reads_tools_mentions_them() -> None:
    assert ChatTemplate("{% if tools %}x{% endif %}", variables={}).mentions_tools
    assert not ChatTemplate("{{ messages }} tools", variables={}).mentions_tools


def test_the_plain_fallback_names_the_speakers() -> None:
    assert _render(PLAIN_TEMPLATE, "hi", "hello", "bye", invite=True) == (
        "User: hi\n\nAssistant: hello</s>\n\nUser: bye\n\nAssistant:"
    )
