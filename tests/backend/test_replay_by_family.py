"""Calls in every family's markup, generated, sent back by the client, and read again as they were."""

from __future__ import annotations

import re

import pytest
from tokenizers import Tokenizer as Backend

from keepwarm.backend.model_words import ModelTurnWords, ModelWords
from keepwarm.chat.answer_parts import AnswerParts
from keepwarm.chat.messages import Chat, Message, Reasoning, Text, ToolResult, ToolUse
from keepwarm.chat.parsing.answer_markup import AnswerMarkup, markup_of
from keepwarm.chat.render import ChatRenderer
from keepwarm.chat.request import ChatRequest
from keepwarm.chat.tokenizer import Tokenizer
from keepwarm.chat.tokenizer_parts import TokenizerParts
from keepwarm.core.ids import RequestId, TenantId
from tests.chat.facsimiles import FACSIMILES
from tests.chat.families import byte_level
from tests.chat.parsing.corpora import CORPORA
from tests.chat.parsing.reading import TOOLS
from tests.chat.shared import new_tenant

HERMES_CALL = '<tool_call>\n{"name": "Bash", "arguments": {"command": "ls"}}\n</tool_call>'
CODER_CALL = "<tool_call>\n<function=Bash>\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>"
LLAMA_CALL = '<|python_tag|>{"name": "Bash", "parameters": {"command": "ls"}}'
ANSWERS = {
    "hermes": [HERMES_CALL, f"I look.\n{HERMES_CALL}\n{HERMES_CALL}"],
    "qwen3_coder": [CODER_CALL, f"I look.\n\n{CODER_CALL}"],
    "llama3_json": [LLAMA_CALL, LLAMA_CALL.removeprefix("<|python_tag|>")],
} | {
    corpus.markup.name: [text for text in corpus.well_formed if not text.startswith("[THINK]")]
    for name, corpus in CORPORA.items()
    if "thoughts" not in name
}
STOPS = {
    "deepseek": ("<｜end▁of▁sentence｜>",),
    "mistral": ("</s>",),
    "glm": ("<|observation|>", "<|user|>"),
    "gemma": ("<turn|>",),
    "gemma-3": ("<end_of_turn>",),
    "function": ("<end_of_turn>",),
    "llama": ("<|eot_id|>",),
    "hermes": ("<|im_end|>",),
    "qwen3": ("<|im_end|>",),
}
FAMILIES = [name for name in FACSIMILES if name != "gpt-oss"]  # its history ends answers otherwise


def tokenizer_for(name: str, markup: AnswerMarkup) -> Tokenizer:
    """Every mark of the family is a special token."""
    stops = STOPS.get(name) or STOPS[name.split("-")[0]]
    marks = re.findall(r"<[|｜/]?[\w▁]+[|｜]?>|\[/?[A-Z_]+\]", FACSIMILES[name])
    special = {*marks, *stops, "<s>", *markup.control_texts(TOOLS)}
    backend = Backend.from_str(byte_level(tuple(sorted(special))).to_str())
    return Tokenizer(
        TokenizerParts(
            origin=name,
            backend=backend,
            bos_token="<s>",
            eos_token=stops[0],
            stop_tokens=tuple(int(backend.token_to_id(stop) or 0) for stop in stops),
            chat_templates={"default": FACSIMILES[name]},
        )
    )


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    """Marks as tokens, else a character a token: not as the text would be tokenised."""
    return [
        token
        for piece in tokenizer.control.cut(text)
        for token in (
            [piece]
            if isinstance(piece, int)
            else [int(one) for character in piece for one in tokenizer.encode_inside(character)]
        )
    ]


def open_turn(words: ModelWords, tenant: TenantId, *messages: Message) -> ModelTurnWords:
    chat = Chat(messages=messages, tools=TOOLS)
    return words.open_turn(ChatRequest(request_id=RequestId("r"), tenant=tenant, chat=chat))


@pytest.mark.parametrize("name", FAMILIES)
def test_the_next_prompt_begins_with_every_token_of_an_answer_that_calls(name: str) -> None:
    markup = markup_of(FACSIMILES[name], tool_format="auto")
    tokenizer = tokenizer_for(name, markup)
    asked = Message(role="user", parts=(Text(text="go"),))
    num_answers = 0
    words = ModelWords(tokenizer, ChatRenderer(tokenizer), markup)
    for text in ANSWERS[markup.name]:
        tenant = new_tenant()
        turn = open_turn(words, tenant, asked)
        tokens = ids_of(tokenizer, "</think>" + text if name == "deepseek-v3" else text)
        said = AnswerParts()
        said.add(turn.add(tokens, ()))
        said.add(turn.finish())
        turn.remember()
        sent = tuple(part for part in said.all() if not isinstance(part, Reasoning))
        results = tuple(
            ToolResult(tool_use_id=part.id, parts=(Text(text="x"),))
            for part in sent
            if isinstance(part, ToolUse)
        )
        if not results:
            continue
        num_answers += 1

        later = open_turn(
            words, tenant, asked, Message(role="assistant", parts=sent), Message(role="user", parts=results)
        )

        while tokens[-1] in tokenizer.stop_tokens:
            tokens.pop()
        so_far = [*turn.prompt.tolist(), *tokens]
        assert later.prompt.tolist()[: len(so_far)] == so_far, text
    assert num_answers
