"""Thoughts apart from words, in every spelling, wherever they begin."""

from __future__ import annotations

import pytest

from keepwarm.chat.parsing.hermes import HERMES
from keepwarm.chat.parsing.parser import AnswerParser, ParsingContext
from keepwarm.chat.parsing.reasoning import FAMILIES, THINK, ReasoningMarks, ReasoningParser, reasoning_for
from tests.chat.parsing.reading import Call, Part, Read, read_every_split, read_pieces

LS = '<tool_call>{"name": "Bash", "arguments": {"command": "ls"}}</tool_call>'
LS_CALL = Call("Bash", {"command": "ls"})


class Thinking:
    """Hermes behind these marks."""

    name = "thinking"
    frames_text = False

    def __init__(self, marks: ReasoningMarks = THINK, *, takes_stray_end: bool = True) -> None:
        self.control_texts = marks.control_texts
        self._marks = marks
        self._takes_stray_end = takes_stray_end

    def fits(self, template: str) -> bool:
        return True

    def parser(self, context: ParsingContext) -> AnswerParser:
        inner = HERMES.parser(context)
        return ReasoningParser(self._marks, context, inner, takes_stray_end=self._takes_stray_end)


ANSWERS: list[tuple[str, str, tuple[Part, ...]]] = [
    ("<think>\nHm.\n\nSo.\n</think>\n\nYes.\n", "Hm.\n\nSo.", ("Yes.\n",)),
    ("\n <think>Hm.</think>Yes.", "Hm.", ("Yes.",)),
    ("<think>\n\n</think>\n\nYes.", "", ("Yes.",)),
    (f"<think>Call {LS}?</think>\n{LS}", f"Call {LS}?", (LS_CALL,)),
    (f"<think>Hm.</think>\nFirst.\n{LS}\nThen.", "Hm.", ("First.", LS_CALL, "Then.")),
    ("<think>One.</think>\n<think>Two.</think>\nYes.", "One.Two.", ("Yes.",)),
    ("<think>never ends, a </ b", "never ends, a </ b", ()),
    ("Say <think> to think, </th", "", ("Say <think> to think, </th",)),
    (" \n plain", "", (" \n plain",)),
    ("<thin", "", ("<thin",)),
]


@pytest.mark.parametrize(("text", "reasoning", "parts"), ANSWERS)
def test_a_thought_is_told_apart_however_the_answer_is_cut(
    text: str, reasoning: str, parts: tuple[Part, ...]
) -> None:
    assert read_every_split(Thinking(), text) == Read(parts=parts, reasoning=reasoning)


@pytest.mark.parametrize("marks", FAMILIES, ids=lambda marks: marks.open)
def test_every_family_s_marks_are_known_by_its_template(marks: ReasoningMarks) -> None:
    template = "{{ '" + marks.open + "' + m.reasoning_content + '" + marks.close + "' }}"
    assert reasoning_for(template) == marks
    assert reasoning_for("{{ messages }}") == THINK

    read = read_every_split(Thinking(marks), f"{marks.open}Hm.{marks.close}\nYes.")

    assert read == Read(parts=("Yes.",), reasoning="Hm.")


@pytest.mark.parametrize(
    ("text", "reasoning", "parts"),
    [
        ("\nHm.\n</think>\n\nYes.", "Hm.", ("Yes.",)),
        ("<think>\nHm.</think>Yes.", "Hm.", ("Yes.",)),
        ("Hm.", "Hm.", ()),
        ("</think>\nYes.", "", ("Yes.",)),
        (f"Hm.</think>{LS}", "Hm.", (LS_CALL,)),
    ],
)
def test_where_the_prompt_opened_the_thought_the_answer_begins_inside(
    text: str, reasoning: str, parts: tuple[Part, ...]
) -> None:
    expected = Read(parts=parts, reasoning=reasoning)

    assert read_pieces(Thinking(), [text], begins_in_reasoning=True) == expected
    assert read_pieces(Thinking(), text, begins_in_reasoning=True) == expected
    assert THINK.opened_by("<|im_start|>assistant\n<think>\n")
    assert not THINK.opened_by("<think>\n\n</think>\n\n")


def test_an_end_without_a_beginning_is_left_out_and_counted() -> None:
    read = read_every_split(Thinking(), f"Hm, so.\n</think>\n\nYes.\n{LS}")

    assert read == Read(parts=("Hm, so.\nYes.", LS_CALL), num_malformed=1)


def test_an_end_without_a_beginning_is_text_where_the_template_knows_none() -> None:
    text = "Hm, so.\n</think>\n\nYes."

    assert read_every_split(Thinking(takes_stray_end=False), text) == Read(parts=(text,))


def test_a_mark_inside_a_call_s_arguments_is_the_arguments_own() -> None:
    text = '<tool_call>{"name": "Bash", "arguments": {"command": "echo </think> x"}}</tool_call></think>'

    read = read_every_split(Thinking(), text)

    assert read.parts == (Call("Bash", {"command": "echo </think> x"}), "</think>")
