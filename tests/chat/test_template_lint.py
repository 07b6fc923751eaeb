"""Each habit of a template is found, and costs what an actual conversation measures."""

from __future__ import annotations

from datetime import datetime

import numpy as np
import pytest

from keepwarm.chat.borrowed_tokenizer import with_template
from keepwarm.chat.lint_finding import CAUSES, Finding
from keepwarm.chat.lint_trial import TYPICAL_AGENT, MadeUpAgent, Thinking, make_up
from keepwarm.chat.render import ChatRenderer
from keepwarm.chat.template_lint import lint_template
from keepwarm.chat.tokenizer import Tokenizer
from keepwarm.chat.tokenizer_parts import TokenizerParts
from keepwarm.core.ids import TenantId
from tests.chat import lint_templates as habits
from tests.chat.facsimiles import FACSIMILES
from tests.chat.families import CHATML_TOKENS, FAMILIES, byte_level, family, tokenizer_of

_ANNA = TenantId("anna")
_DAY = datetime(2026, 1, 30)
_AGENT = MadeUpAgent(
    prompt_tokens=6_000,
    head_tokens=1_000,
    new_tokens=150,
    output_tokens=100,
    thought_tokens=40,
    turns_a_question=5,
)
_COSTLY: dict[str, tuple[str, Thinking]] = {
    "DROPS_AFTER_A_QUESTION": ("thoughts-dropped-after-question", "returned"),
    "DROPS_ALWAYS": ("thoughts-dropped-always", "returned"),
    "UNCLOSED_THOUGHTS": ("thoughts-not-replayed", "left_out"),
    "TOOLS_LAST": ("tools-move", "none"),
    "SYSTEM_LAST": ("system-moves", "none"),
    "NUMBERED": ("numbering", "none"),
    "LAST_TEXT": ("last-message-text", "none"),
    "REWRITES": ("text-changes", "none"),
    "HEADER": ("header-differs", "none"),
    "TRIMS_EARLIER": ("whitespace", "none"),
}


def _tokenizer(template: str, *, bos: str = "") -> Tokenizer:
    return tokenizer_of(
        byte_level(CHATML_TOKENS, ("<think>", "</think>")), template, bos=bos, eos="<|im_end|>"
    )


def _lint(tokenizer: Tokenizer) -> dict[str, Finding]:
    findings = lint_template(tokenizer, ChatRenderer(tokenizer, now=_DAY), agent=_AGENT)
    assert len({finding.id for finding in findings}) == len(findings)
    return {finding.id: finding for finding in findings}


def _costs(tokenizer: Tokenizer) -> dict[str, int]:
    return {name: each.tokens_a_turn for name, each in _lint(tokenizer).items() if each.tokens_a_turn}


def _served(tokenizer: Tokenizer, thinking: Thinking) -> list[tuple[int, int]]:
    """The conversation, turn by turn as a front serves it: what each turn after the first one read,
    and how much of what was cached it had no use for."""
    renderer = ChatRenderer(tokenizer, now=_DAY)
    conversation = make_up(tokenizer, renderer.program, _AGENT, thinking)
    cached, counted = np.array([], np.int32), []
    for number in range(len(conversation.turns) + 1):
        prompt = renderer.render(_ANNA, conversation.chat(number))
        both = min(len(cached), len(prompt.tokens))
        num_kept = int(np.cumprod(cached[:both] == prompt.tokens[:both]).sum())
        counted.append((len(prompt.tokens) - num_kept, len(cached) - num_kept))
        if number < len(conversation.turns):
            turn = conversation.turns[number]
            generated = tokenizer.encode_template_text(turn.spelled)
            renderer.remember(_ANNA, prompt, turn.answer, generated.tolist())
            cached = np.concatenate([prompt.tokens, generated])
    return counted[1:]


def _measured_a_turn(tokenizer: Tokenizer, thinking: Thinking) -> int:
    """Of the last two turns: one after a tool's result, one after a question."""
    plain = _served(tokenizer, "none")[-2:]
    if thinking == "none":
        step, question = (lost for _read, lost in plain)
    else:
        thought = _served(tokenizer, thinking)[-2:]
        step, question = (
            max(0, read - plain_read) for (read, _), (plain_read, _) in zip(thought, plain, strict=True)
        )
    return round((4 * step + question) / 5)


@pytest.mark.parametrize("habit", _COSTLY)
def test_a_habit_is_found_and_costs_what_a_served_conversation_measures(habit: str) -> None:
    name, thinking = _COSTLY[habit]
    tokenizer = _tokenizer(getattr(habits, habit))

    costs = _costs(tokenizer)

    assert costs[name] == _measured_a_turn(tokenizer, thinking)
    assert costs[name] > 0


@pytest.mark.parametrize("habit", _COSTLY)
def test_it_is_found_alone_with_a_fix(habit: str) -> None:
    findings = _lint(_tokenizer(getattr(habits, habit)))

    assert [name for name in findings if name in CAUSES] == [_COSTLY[habit][0]]
    assert findings[_COSTLY[habit][0]].fix
    assert "prefix" not in findings


@pytest.mark.parametrize("habit", ["STABLE", "KEEPS_THOUGHTS", "UNCLOSED"])
def test_a_template_that_only_appends_costs_nothing(habit: str) -> None:
    findings = _lint(_tokenizer(getattr(habits, habit)))

    assert findings["prefix"].severity == "ok"
    assert all(finding.severity != "warning" for finding in findings.values())
    assert not any(finding.tokens_a_turn for finding in findings.values())


@pytest.mark.parametrize("name", set(FAMILIES) - {"thinking"})
def test_the_familiar_ones_cost_nothing(name: str) -> None:
    findings = _lint(family(name)[1])

    assert findings["prefix"].severity == "ok"
    assert "refuses" not in findings


def test_the_embedded_model_s_template_passes(embedded: Tokenizer) -> None:
    findings = _lint(embedded)

    assert findings["prefix"].severity == "ok"
    assert findings["replay"].severity == "ok"
    assert findings["growth"].severity == "ok"
    assert findings["bos"].severity == "ok"
    assert findings["tool-format"].what == "Tool calls are read as hermes."
    assert all(finding.severity != "warning" for finding in findings.values())


def test_a_date_costs_a_whole_prompt_after_a_start_on_another_day() -> None:
    tokenizer = _tokenizer(habits.DATED)
    first, second = (
        ChatRenderer(tokenizer, now=day).render(
            _ANNA, make_up(tokenizer, ChatRenderer(tokenizer, now=day).program, _AGENT, "none").chat(20)
        )
        for day in (_DAY, datetime(2026, 1, 31))
    )
    num_kept = int(np.cumprod(first.tokens == second.tokens).sum())

    date = _lint(tokenizer)["date"]

    assert _AGENT.num_turns == 20
    assert date.tokens_a_turn == (len(second.tokens) - num_kept) // 20 > 0
    assert date.severity == "info"


def test_less_than_a_block_a_turn_is_no_warning() -> None:
    trimmed = _lint(_tokenizer(habits.TRIMS_ANSWERS))["whitespace"]

    assert trimmed.severity == "info"
    assert trimmed.tokens_a_turn < 16


def test_the_finding_says_what_was_assumed_and_from_where_on() -> None:
    what = _lint(_tokenizer(habits.DROPS_AFTER_A_QUESTION))["thoughts-dropped-after-question"].what

    assert "In a conversation of 6,000 tokens in which a turn brings 150 new ones" in what
    assert "an answer of 100 (40 of them thoughts, where the model thinks)" in what
    assert "a new question every 5 turns" in what
    assert "from the thought of turn 16 on (of 20)" in what
    assert " 0 after a tool's result" in what


def test_the_typical_agent_has_the_sizes_that_were_measured() -> None:
    assert TYPICAL_AGENT.num_turns == 90
    assert "100,000 tokens" in TYPICAL_AGENT.describe()


def test_a_header_that_replay_mends_costs_nothing() -> None:
    opens = habits.KEEPS_THOUGHTS.replace("assistant\n' }}{% endif %}", "assistant\n<think>' }}{% endif %}")
    assert opens != habits.KEEPS_THOUGHTS

    findings = _lint(_tokenizer(opens))

    assert "header-replayed" in findings
    assert findings["prefix"].severity == "ok"
    assert "header-replayed" not in _lint(_tokenizer(habits.KEEPS_THOUGHTS))


def test_of_two_habits_in_one_turn_the_first_has_the_cost() -> None:
    both = _costs(_tokenizer(habits.BOTH_LAST))

    assert list(both) == ["tools-move"]
    assert both["tools-move"] > _costs(_tokenizer(habits.SYSTEM_LAST))["system-moves"] > 0


def test_a_template_that_refuses_tools_is_reported_with_its_words() -> None:
    findings = _lint(_tokenizer(habits.REFUSES))

    assert findings["refuses"].severity == "warning"
    assert "no tools here" in findings["refuses"].what


def test_a_doubled_bos_is_found() -> None:
    doubled = _lint(_tokenizer(habits.DOUBLED, bos="<|endoftext|>"))

    assert doubled["bos-doubled"].severity == "warning"
    assert "2 BOS tokens" in doubled["bos-doubled"].what
    assert _lint(_tokenizer(habits.STABLE, bos="<|endoftext|>"))["bos"].severity == "ok"


def test_what_a_template_knows_is_told() -> None:
    chatml = _lint(family("chatml")[1])
    mistral = _lint(family("mistral")[1])
    unclosed = _lint(_tokenizer(habits.UNCLOSED))

    assert {"tools-as-text", "system", "content", "growth", "replay"} <= set(chatml)
    assert {"tools-as-text", "system-as-question", "growth-whole"} <= set(mistral)
    assert {"tools", "replay-off"} <= set(unclosed)


@pytest.mark.parametrize("name", FACSIMILES)
def test_no_family_s_template_is_refused(name: str) -> None:
    tokenizer = Tokenizer(with_template(_parts(), FACSIMILES[name]))

    findings = lint_template(tokenizer, ChatRenderer(tokenizer), agent=_AGENT)

    assert "refuses" not in {finding.id for finding in findings}


def _parts() -> TokenizerParts:
    return TokenizerParts(origin="tiny", backend=byte_level(), eos_token="<|im_end|>")
