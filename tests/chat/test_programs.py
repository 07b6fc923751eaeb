"""Templates that let one say whether to think."""

from __future__ import annotations

import pytest

from keepwarm.chat.messages import Chat
from keepwarm.chat.render import ChatRenderer, RenderedPrompt
from keepwarm.chat.tokenizer import Tokenizer
from keepwarm.core.ids import TenantId
from tests.chat.families import CHATML, CHATML_TOKENS, byte_level, message, tokenizer_of

_ANNA = TenantId("anna")
_NO_THOUGHT = "('<think>\n\n</think>\n\n' if enable_thinking is defined and not enable_thinking else '')"
_INVITATION = "'<|im_start|>assistant\n'"
_SWITCHED = CHATML.replace(_INVITATION, f"{_INVITATION} + {_NO_THOUGHT}")
_ASKED = Chat(messages=(message("user", "hi"),))
_MORE = Chat(messages=(*_ASKED.messages, message("assistant", "hello"), message("user", "and?")))


def _tokenizer(template: str = _SWITCHED) -> Tokenizer:
    return tokenizer_of(byte_level(CHATML_TOKENS, ("<think>", "</think>")), template, eos="<|im_end|>")


def _text(tokenizer: Tokenizer, prompt: RenderedPrompt) -> str:
    return b"".join(map(tokenizer.token_bytes, prompt.tokens.tolist())).decode()


@pytest.mark.parametrize(
    ("reasoning", "ends"), [(None, "assistant\n"), (True, "assistant\n"), (False, "</think>\n\n")]
)
def test_a_template_with_a_switch_is_told_whether_to_think(reasoning: bool | None, ends: str) -> None:
    tokenizer = _tokenizer()
    assert _text(tokenizer, ChatRenderer(tokenizer).render(_ANNA, _ASKED, reasoning=reasoning)).endswith(ends)


@pytest.mark.parametrize("reasoning", [True, False])
def test_a_template_without_one_stays_as_it_is(reasoning: bool) -> None:
    tokenizer = _tokenizer(CHATML)
    renderer = ChatRenderer(tokenizer)
    told = renderer.render(_ANNA, _ASKED, reasoning=reasoning)
    assert told.tokens.tolist() == renderer.render(_ANNA, _ASKED).tokens.tolist()


def test_a_conversation_may_change_its_mind_about_thinking() -> None:
    tokenizer = _tokenizer()
    renderer = ChatRenderer(tokenizer)
    for chat, reasoning in ((_ASKED, None), (_MORE, False), (_MORE, None), (_MORE, True)):
        fresh = ChatRenderer(tokenizer, conversation_memo_bytes=0).render(_ANNA, chat, reasoning=reasoning)
        assert renderer.render(_ANNA, chat, reasoning=reasoning).tokens.tolist() == fresh.tokens.tolist()


def test_an_answer_that_was_told_not_to_think_is_replayed_with_the_thought_it_was_given() -> None:
    tokenizer = _tokenizer()
    renderer = ChatRenderer(tokenizer)
    prompt = renderer.render(_ANNA, _ASKED, reasoning=False)
    said = [50, 60, 70]
    renderer.remember(_ANNA, prompt, [message("assistant", "hello").parts[0]], said)
    following = renderer.render(_ANNA, _MORE, reasoning=False)
    begins = [*prompt.tokens.tolist(), *said]
    assert following.tokens[: len(begins)].tolist() == begins
