"""What holds of every format there is."""

from __future__ import annotations

import pytest

from keepwarm.chat.parsing.parser import ToolFormat
from keepwarm.chat.parsing.registry import TOOL_FORMATS
from tests.chat.parsing.reading import Call, calls_of, read_every_split, text_of

LS = '{"name": "Bash", "arguments": {"command": "ls"}}'
LS_CALL = Call("Bash", {"command": "ls"})
every_format = pytest.mark.parametrize("markup", TOOL_FORMATS, ids=lambda markup: markup.name)


@every_format
@pytest.mark.parametrize("text", [LS, f"```json\n{LS}\n```", f"```\n[{LS}]\n```\n", f"\n{LS};"])
def test_json_without_markup_that_names_a_declared_tool_is_a_call(markup: ToolFormat, text: str) -> None:
    read = read_every_split(markup, f"I look.\n{text}")

    assert (read.parts, read.num_malformed) == (("I look.", LS_CALL), 0)


@every_format
@pytest.mark.parametrize(
    "text",
    [
        LS.replace("Bash", "undeclared"),
        f"```json\n{LS.replace('Bash', 'undeclared')}\n```",
        f"```python\n{{}}\n```\nand `{LS}`\n",
        "  \n[ {} ] ``` {",
    ],
)
def test_other_json_is_text_to_the_last_byte(markup: ToolFormat, text: str) -> None:
    read = read_every_split(markup, text)

    assert (text_of(read), calls_of(read), read.num_malformed) == (text, [], 0)
