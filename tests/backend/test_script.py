from __future__ import annotations

from pathlib import Path

import pytest

from keepwarm.backend.script import Script, ScriptedAnswer, read_script
from keepwarm.core.errors import BadSetting


def no_prompt() -> str:
    raise AssertionError("the whole prompt is not needed")


def written(folder: Path, text: str) -> str:
    file = folder / "script.toml"
    file.write_text(text)
    return str(file)


def test_the_first_answer_that_fits_is_said() -> None:
    script = Script(
        answers=(
            ScriptedAnswer(when="^never", say="no"),
            ScriptedAnswer(when="colou?r", say="red"),
            ScriptedAnswer(say="anything"),
        )
    )
    assert script.answer_to("which color", no_prompt) == "red"
    assert script.answer_to("which size", no_prompt) == "anything"


def test_all_conditions_of_an_answer_must_be_met() -> None:
    script = Script(
        answers=(
            ScriptedAnswer(when="color", prompt="You are a painter", say="ochre"),
            ScriptedAnswer(when="color", say="red"),
        )
    )
    assert script.answer_to("color?", lambda: "You are a painter. color?") == "ochre"
    assert script.answer_to("color?", lambda: "You are a plumber. color?") == "red"


def test_a_prompt_that_no_answer_fits_is_told_so() -> None:
    assert Script(answers=()).answer_to("hello", no_prompt) == "No answer of the script fits this prompt."


def test_a_file_is_read_with_markup_as_it_stands(tmp_path: Path) -> None:
    file = written(
        tmp_path, "[[answers]]\nwhen = 'go'\nsay = '<tool_call>{\"name\": \"a\\n\"}</tool_call>'\n"
    )
    assert read_script(file).answer_to("go", no_prompt) == '<tool_call>{"name": "a\\n"}</tool_call>'


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[[answers]]\nwhen = 'a'\n", "missing required field `say`"),
        ("[[answers]]\nsay = 'a'\nif = 'b'\n", "unknown field `if`"),
        ("[[answers]]\nsay = 'a'\nwhen = '('\n", "when = '(' is no regular expression"),
        ("[[answers]\n", "Expected"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(tmp_path: Path, text: str, complaint: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(BadSetting, match="--script") as refused:
        read_script(file)
    assert complaint in str(refused.value)
    assert file in str(refused.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="No such file"):
        read_script(str(tmp_path / "none.toml"))
