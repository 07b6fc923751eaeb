"""What holds of every format there is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepwarm.chat.parsing.parser import ToolFormat
from keepwarm.chat.parsing.registry import TOOL_FORMATS
from tests.chat.parsing.reading import Call, calls_of, read_every_split, read_pieces, text_of

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


HEAP = [
    *(
        "<tool_call>",
        "</tool_call>",
        "<|python_tag|>",
        "<function=",
        "Bash",
        ">",
        "</function>",
        "<parameter=",
    ),
    *(
        "command>",
        "\n",
        "</parameter>",
        '{"name": "Bash", "arguments": ',
        '{"arguments": {}, "name": "Read"}',
    ),
    *(
        '{"name": "x", "parameters": ',
        "{",
        "}",
        "[",
        "]",
        '"',
        '"{\\"a\\": ',
        '\\"',
        "\\",
        "\\u12",
        "\\ud83c",
    ),
    *(
        ",",
        ";",
        ":",
        '"a": ',
        "1",
        "-",
        "1e",
        "true",
        "None",
        "null",
        " ",
        "```",
        "```json\n",
        "words",
        "<",
        "🎈",
    ),
]


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "llama3_json"])
@settings(deadline=None, max_examples=400)
@given(pieces=st.lists(st.sampled_from(HEAP), max_size=25))
def test_any_heap_of_markup_is_read_to_its_end_and_the_same_however_it_is_cut(
    name: str, pieces: list[str]
) -> None:
    markup = next(each for each in TOOL_FORMATS if each.name == name)
    text = "".join(pieces)

    read = read_pieces(markup, pieces)

    assert read == read_pieces(markup, text) == read_pieces(markup, [text])
    if not calls_of(read):
        assert text_of(read) == text, "what is no call is lost"
