"""What went wrong elsewhere with tool calls, and must not here."""

from __future__ import annotations

import json
from typing import Any

import pytest

from keepwarm.chat.events import Accepted, Admitted, ChatEvent, Finished, Timings, Usage
from keepwarm.chat.messages import Chat, Message, Text, ToolResult, ToolUse
from keepwarm.chat.parsing.answer_markup import markup_of
from keepwarm.chat.parsing.registry import TOOL_FORMATS
from keepwarm.chat.render import ChatRenderer
from keepwarm.core.ids import TenantId
from keepwarm.dialects.anthropic import parse_turn
from keepwarm.dialects.anthropic.stream import open_stream
from keepwarm.dialects.dialect import AnswerHead
from tests.chat.facsimiles import FACSIMILES
from tests.chat.families import CHATML, byte_level, tokenizer_of
from tests.chat.parsing.corpora import CORPORA
from tests.chat.parsing.reading import TOOLS, Call, calls_of, read_every_split
from tests.dialects.sse_reader import read_named

HERMES = next(each for each in TOOL_FORMATS if each.name == "hermes")
CALL = (
    '<tool_call>\n{"name": "Bash", "arguments": {"command": "a \\"ü\\u00fc\\"", "n": -1.5e3}}\n</tool_call>'
)
TRANSCRIPTS = [
    'I look first.\n\n<tool_call>\n{"name": "Bash", "arguments": {"command": "ls"}}\n</tool_call>',
    '<tool_call>\n{"arguments": {"command": "ls"}, "name": "Bash"}\n</tool_call><|im_end|>',
    '<tool_call>{"name": "Bash", "arguments": "{\\"command\\": \\"ls\\"}"}\n',
    'Sure:\n```json\n{"name": "Bash", "arguments": {"command": "ls"}}\n```',
    '{"name": "Bash", "parameters": {"command": "ls"}}',
    '<tool_call>\n{"name": "Bash", "arguments": {"command": "ls"}\n</tool_call>',
]


def sse(text: str, markup: Any = HERMES) -> list[dict[str, Any]]:
    """The events a client of the Messages API gets for an answer that came a character at a time."""
    parser = markup_of("", tool_format=markup.name).parser(TOOLS, prompt_end="", new_call_id=lambda: "call_1")
    deltas: list[ChatEvent] = [delta for character in text for delta in parser.feed(character)]
    deltas += parser.finish()
    head = AnswerHead(request_id="req_1", model="m", created_at=0)
    request = (
        b'{"model": "m", "max_tokens": 1, "stream": true, "messages": [{"role": "user", "content": "x"}]}'
    )
    stream = open_stream(head, parse_turn(request))
    finished = Finished(
        reason="tool_use",
        usage=Usage(prompt_tokens=1, cached_tokens=0, output_tokens=1),
        timings=Timings(admitted_s=0.0, first_token_s=0.0, total_s=0.0),
    )
    events = [Accepted(prompt_tokens=1), Admitted(cached_tokens=0), *deltas, finished]
    raw = b"".join(stream.feed(event) for event in events)
    return [body for _, body in read_named(raw)]


@pytest.mark.parametrize("text", TRANSCRIPTS)
def test_no_form_of_a_call_that_models_write_is_left_as_text(text: str) -> None:
    """Row 5: a call stayed plain text, because the parser missed its form."""
    assert calls_of(read_every_split(HERMES, text)) == [Call("Bash", {"command": "ls"})]


def test_a_call_that_could_not_be_read_is_counted() -> None:
    """Row 5: and nobody knew."""
    assert read_every_split(HERMES, "<tool_call>\nname: Bash\ncommand: ls\n</tool_call>").num_malformed > 0


def test_arguments_are_streamed_and_valid_though_every_edge_of_a_chunk_is_inside_something() -> None:
    """Row 6: arguments came all at once, or cut at a chunk's edge."""
    pieces = [
        event["delta"]["partial_json"] for event in sse(CALL) if _delta_type(event) == "input_json_delta"
    ]

    assert len(pieces) >= 8
    assert json.loads("".join(pieces)) == {"command": 'a "üü"', "n": -1500.0}


@pytest.mark.parametrize("template", [*FACSIMILES.values(), CHATML], ids=[*FACSIMILES, "no tools"])
@pytest.mark.parametrize("arguments", ['{"path": "unfin', "[1, 2]", "", "null", '{"__unparsedToolInput": "x'])
def test_a_past_call_with_broken_arguments_does_not_end_the_session(template: str, arguments: str) -> None:
    """Row 7: every later request of the session was refused."""
    tokenizer = tokenizer_of(byte_level(), template, bos="<|endoftext|>", eos="<|im_end|>")
    broken = ToolUse(id="toolu_1", name="Read", arguments=arguments)
    messages = (
        Message(role="user", parts=(Text(text="go"),)),
        Message(role="assistant", parts=(Text(text="I read."), broken)),
        Message(
            role="user",
            parts=(ToolResult(tool_use_id="toolu_1", parts=(Text(text="no JSON"),), is_error=True),),
        ),
    )

    prompt = ChatRenderer(tokenizer).render(TenantId("t"), Chat(messages=messages, tools=TOOLS))

    shown = tokenizer.decode(prompt.tokens)
    assert "no JSON" in shown
    assert "Read" in shown


@pytest.mark.parametrize("name", CORPORA)
def test_a_block_is_closed_before_one_of_another_kind_begins(name: str) -> None:
    """Row 10: a thinking delta came in a text block."""
    corpus = CORPORA[name]
    for text in [*corpus.well_formed, *corpus.broken]:
        for answer in (text, f"<think>Hm.</think>Well.\n{text}\nSo."):
            _check_blocks(sse(answer, corpus.markup))


def test_thoughts_text_and_calls_each_have_their_block() -> None:
    """Row 10."""
    blocks = _check_blocks(sse(f"<think>Hm.</think>\n\nI look.\n{CALL}\nand\n{CALL}"))

    assert blocks == ["thinking", "text", "tool_use", "text", "tool_use"]


_BLOCK_OF = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "thinking",
    "input_json_delta": "tool_use",
}


def _delta_type(event: dict[str, Any]) -> str:
    return str(event["delta"]["type"]) if event["type"] == "content_block_delta" else ""


def _check_blocks(events: list[dict[str, Any]]) -> list[str]:
    """The types of the blocks; each delta must be of the block that is open."""
    blocks: list[str] = []
    is_open = False
    for event in events:
        if event["type"] == "content_block_start":
            assert not is_open
            is_open = True
            blocks.append(event["content_block"]["type"])
        elif event["type"] == "content_block_delta":
            assert is_open
            assert _BLOCK_OF[_delta_type(event)] == blocks[-1]
            assert event["index"] == len(blocks) - 1
        elif event["type"] == "content_block_stop":
            assert is_open
            is_open = False
    assert not is_open
    return blocks
