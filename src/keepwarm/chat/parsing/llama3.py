"""Llama 3: `<|python_tag|>{"name": …, "parameters": {…}}`, several apart by ";", or without the tag.

What follows the tag and is no JSON is a built-in tool's code, which nobody declared: it stays text.

Source: the prompt format of Llama 3.1 to 3.3.
"""

from __future__ import annotations

from keepwarm.chat.parsing.json_calls import read_json_calls
from keepwarm.chat.parsing.markup import MarkupFormat, Reading
from keepwarm.chat.parsing.source import Steps

_PYTHON_TAG = "<|python_tag|>"


def _read_tagged(reading: Reading) -> Steps[bool]:
    return (yield from read_json_calls(reading)) != "no_call"


LLAMA3 = MarkupFormat(
    name="llama3_json",
    blocks={_PYTHON_TAG: _read_tagged},
    signs=("<|start_header_id|>", '"parameters"'),
    control_texts=frozenset({_PYTHON_TAG}),
)
