"""Each family's calls through a tokenizer to which all of its marks are special tokens."""

from __future__ import annotations

import re

import pytest

from keepwarm.backend.model_words import ModelWords
from keepwarm.chat.messages import Chat, ToolSpec
from keepwarm.chat.parsing.answer_markup import markup_of
from keepwarm.chat.render import ChatRenderer
from keepwarm.chat.request import ChatRequest
from keepwarm.chat.tokenizer import Tokenizer
from keepwarm.core.ids import RequestId, TenantId
from tests.chat.families import byte_level, message, tokenizer_of
from tests.chat.parsing.reading import Call, parts_of
from tests.chat.parsing.written import EOS, TEMPLATES, answer_of

READ = ToolSpec(
    name="Read",
    description="Reads.",
    parameters={"type": "object", "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}}},
)
ARGUMENTS = {"path": 'a <b> "c"\n', "limit": 3}
MARK = re.compile(r"</?[|｜]?[a-zA-Z_▁]+[|｜]?>|\[/?[A-Z_]+\]|<\|\"\|>|｜DSML｜")

WORDS = {"</function>", "</parameter>"}
"""Qwen3-Coder's, which its tokenizer does not know."""
OPENS_A_THOUGHT = ("deepseek-v3",)


def tokenizer_named(name: str) -> Tokenizer:
    marks = sorted({EOS, *MARK.findall(TEMPLATES[name])} - WORDS)
    return tokenizer_of(byte_level(marks), TEMPLATES[name], eos=EOS)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_call_written_in_special_tokens_is_told_as_a_call(name: str) -> None:
    tokenizer = tokenizer_named(name)
    words = ModelWords(tokenizer, ChatRenderer(tokenizer), markup_of(TEMPLATES[name], tool_format="auto"))
    turn = words.open_turn(
        ChatRequest(
            request_id=RequestId("r"),
            tenant=TenantId("t"),
            chat=Chat(messages=(message("user", "go"),), tools=(READ,)),
        )
    )
    text = ("</think>" if name in OPENS_A_THOUGHT else "") + answer_of(name, "", [("Read", ARGUMENTS)])
    answer = tokenizer.encode_template_text(text).tolist()

    deltas = [delta for token in answer for delta in turn.add([token], ())]
    deltas += turn.finish()

    assert parts_of(deltas)[0] == (Call("Read", ARGUMENTS),)
    assert any(tokenizer.is_special(token) for token in answer)
