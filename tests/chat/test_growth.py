"""A conversation that grows, against the same conversation rendered whole."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepwarm.chat.chain import chain_on, chain_root
from keepwarm.chat.messages import Chat, Message, Part, Reasoning, Text, ToolResult, ToolSpec, ToolUse
from keepwarm.chat.render import ChatRenderer, RenderedPrompt
from keepwarm.chat.request import KnownBeginning
from keepwarm.chat.tokenizer import Tokenizer
from keepwarm.core.errors import UnknownConversation
from keepwarm.core.hashing import BlockHasher, root_hash
from keepwarm.core.ids import BlockHash, TenantId, TokenIds
from tests.chat.families import CHATML, FAMILIES, byte_level, family, message, tokenizer_of

_ANNA = TenantId("anna")
_BOB = TenantId("bob")
_FAMILIES = {name: family(name) for name in FAMILIES}
_RENDERERS = {name: ChatRenderer(_FAMILIES[name][1]) for name in FAMILIES}
_WHOLE = {name: ChatRenderer(_FAMILIES[name][1], conversation_memo_bytes=0) for name in FAMILIES}
_READ = ToolSpec(name="read", description="Reads.", parameters={"type": "object"})
_HASHER = BlockHasher(key=b"k" * 32, block_size=4)
_ROOT = root_hash(b"k" * 32, _ANNA)
_WORDS = ["warm", "  indented", "<|im_end|>", "<s>", "é🙂", "\n\n", "user", "</think>", "x" * 40, " "]
_LOCAL = [name for name in FAMILIES if _RENDERERS[name].remembers_conversations]


def _text(rng: random.Random) -> str:
    return "".join(rng.choices(_WORDS, k=rng.randint(1, 4))) + "."


def _round(rng: random.Random) -> list[Message]:
    calls = [
        ToolUse(id=f"c{rng.random()}", name="read", arguments={"p": _text(rng)})
        for _ in range(rng.choice((0, 0, 1, 2)))
    ]
    said: list[Part] = [Text(text=_text(rng))] if not calls or rng.random() < 0.5 else []
    results: list[Part] = [ToolResult(tool_use_id=call.id, parts=(Text(text=_text(rng)),)) for call in calls]
    asked: list[Part] = [Text(text=_text(rng))] if not calls or rng.random() < 0.2 else []
    return [Message(role="assistant", parts=(*said, *calls)), Message(role="user", parts=(*results, *asked))]


def _whole(name: str, renderer: ChatRenderer, chat: Chat) -> RenderedPrompt:
    """The same prompt by a renderer that lets nothing grow, with the same answers to replay."""
    twin = _WHOLE[name]
    twin._replay = renderer._replay
    return twin.render(_ANNA, chat)


@pytest.mark.parametrize("name", FAMILIES)
@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**32), with_tools=st.booleans(), num_rounds=st.integers(1, 12))
def test_a_grown_prompt_is_the_prompt_rendered_whole(
    name: str, seed: int, with_tools: bool, num_rounds: int
) -> None:
    rng = random.Random(seed)
    renderer = _RENDERERS[name]
    tokenizer = _FAMILIES[name][1]
    messages = [message("user", f"{seed} {_text(rng)}")]
    if rng.random() < 0.5:
        messages.insert(0, message("system", _text(rng)))
    tools = (_READ,) if with_tools else ()
    for _ in range(num_rounds):
        chat = Chat(messages=tuple(messages), tools=tools)
        prompt = renderer.render(_ANNA, chat)
        assert prompt.tokens.tolist() == _whole(name, renderer, chat).tokens.tolist()
        names = prompt.block_names(_HASHER, _ROOT)
        assert names == _HASHER.extend_joined(_ROOT, prompt.tokens)
        new = _round(rng)
        if rng.random() < 0.6:
            _remember(renderer, tokenizer, prompt, new[0].parts, rng)
        messages += new


def _remember(
    renderer: ChatRenderer,
    tokenizer: Tokenizer,
    prompt: RenderedPrompt,
    parts: Sequence[Part],
    rng: random.Random,
) -> None:
    tokens = [rng.randrange(3, 400) for _ in range(rng.randint(1, 6))]
    thought = [Reasoning(text="hm")] if rng.random() < 0.3 else []
    renderer.remember(
        _ANNA, prompt, [*thought, *parts], [token for token in tokens if not tokenizer.is_special(token)]
    )


def _grow(renderer: ChatRenderer, tenant: TenantId = _ANNA, text: str = "next") -> RenderedPrompt:
    first = Chat(messages=(message("user", "hi"),))
    renderer.render(_ANNA, first)
    known = KnownBeginning(chain=chain_on(chain_root(()), first.messages)[-1], num_messages=1)
    more = Chat(messages=(message("assistant", "hello"), message("user", text)))
    return renderer.render(tenant, more, known=known)


@pytest.mark.parametrize("name", _LOCAL)
def test_a_known_beginning_need_not_be_sent_again(name: str) -> None:
    renderer = ChatRenderer(_FAMILIES[name][1])
    prompt = _grow(renderer)
    chat = Chat(messages=(message("user", "hi"), message("assistant", "hello"), message("user", "next")))
    assert prompt.tokens.tolist() == _whole(name, renderer, chat).tokens.tolist()


def test_every_family_but_those_that_look_back_lets_conversations_grow() -> None:
    assert {"chatml", "llama3", "gemma", "thinking"} <= set(_LOCAL)


def test_another_tenants_conversation_is_not_known() -> None:
    with pytest.raises(UnknownConversation):
        _grow(ChatRenderer(_FAMILIES["chatml"][1]), tenant=_BOB)


def test_text_with_a_mark_of_ours_takes_the_whole() -> None:
    with pytest.raises(UnknownConversation):
        _grow(ChatRenderer(_FAMILIES["chatml"][1]), text="a \U000f0000 b")


def test_a_forgotten_conversation_is_asked_for() -> None:
    with pytest.raises(UnknownConversation):
        _grow(ChatRenderer(_FAMILIES["chatml"][1], conversation_memo_bytes=1_000))


def test_a_turn_sent_again_and_a_rewound_turn_are_right() -> None:
    renderer = ChatRenderer(_FAMILIES["chatml"][1])
    begun = (message("user", "hi"), message("assistant", "hello"))
    chats = [
        Chat(messages=(*begun, message("user", "one"), message("assistant", "1"), message("user", "two"))),
        Chat(messages=(*begun, message("user", "one"), message("assistant", "1"), message("user", "other"))),
    ]
    for chat in (
        Chat(messages=begun[:1]),
        Chat(messages=(*begun, message("user", "one"))),
        *chats,
        chats[0],
        *chats,
    ):
        assert (
            renderer.render(_ANNA, chat).tokens.tolist() == _whole("chatml", renderer, chat).tokens.tolist()
        )


def test_neighbouring_questions_become_one_and_take_the_whole() -> None:
    renderer = ChatRenderer(_FAMILIES["chatml"][1])
    renderer.render(_ANNA, Chat(messages=(message("user", "hi"),)))
    chat = Chat(messages=(message("user", "hi"), message("user", "and more")))
    assert renderer.render(_ANNA, chat).tokens.tolist() == _whole("chatml", renderer, chat).tokens.tolist()


@pytest.mark.parametrize(
    "look_back",
    [
        "{{ 'n=' + (messages | length) | string }}",  # before everything
        "{% for m in messages if m.role == 'user' %}{{ loop.index }}{% endfor %}",
        "{{ messages[-1].content }}",
    ],
)
def test_a_template_that_looks_at_the_whole_is_not_trusted_with_a_window(look_back: str) -> None:
    tokenizer = tokenizer_of(byte_level(), look_back + CHATML, eos="<|im_end|>")
    renderer, twin = ChatRenderer(tokenizer), ChatRenderer(tokenizer, conversation_memo_bytes=0)
    messages = [message("user", "hi")]
    for n in range(12):
        chat = Chat(messages=tuple(messages))
        assert renderer.render(_ANNA, chat).tokens.tolist() == twin.render(_ANNA, chat).tokens.tolist()
        messages += [message("assistant", f"answer {n}"), message("user", f"question {n}")]


def test_a_template_that_numbers_its_messages_is_not_local() -> None:
    numbered = CHATML.replace("message.role +", "message.role + (loop.index0 | string) +")
    assert not ChatRenderer(tokenizer_of(byte_level(), numbered, eos="<|im_end|>")).remembers_conversations


def test_the_result_of_a_call_of_long_ago_still_names_its_tool() -> None:
    names_tools = CHATML.replace("message.role +", "message.role + (message.name or '') +")
    names_tools += "{% if tools %}{% endif %}{% if false %}{{ tool_calls }}{% endif %}"
    tokenizer = tokenizer_of(byte_level(), names_tools, eos="<|im_end|>")
    renderer = ChatRenderer(tokenizer)
    assert renderer.remembers_conversations
    call = ToolUse(id="slow", name="qqbuild", arguments={})
    messages = [message("user", "hi"), Message(role="assistant", parts=(call,)), message("user", "meanwhile")]
    for n in range(12):
        renderer.render(_ANNA, Chat(messages=tuple(messages), tools=(_READ,)))
        messages += [message("assistant", f"{n}"), message("user", "more")]
    result = ToolResult(tool_use_id="slow", parts=(Text(text="built"),))
    messages += [message("assistant", "?"), Message(role="user", parts=(result,))]

    chat = Chat(messages=tuple(messages), tools=(_READ,))

    whole = ChatRenderer(tokenizer, conversation_memo_bytes=0).render(_ANNA, chat).tokens
    assert tokenizer.decode(whole).count("qqbuild") >= 1
    assert renderer.render(_ANNA, chat).tokens.tolist() == whole.tolist()


def test_what_is_known_of_many_conversations_stays_within_its_bytes() -> None:
    renderer = ChatRenderer(_FAMILIES["chatml"][1], conversation_memo_bytes=60_000)
    for n in range(40):
        renderer.render(_ANNA, Chat(messages=(message("user", f"{n}"),)))
    assert renderer.memory_bytes()["conversations"] <= 60_000
    assert 2 <= len(renderer._known) < 40


class _CountingHasher(BlockHasher):
    """Notes how many tokens it was given."""

    __slots__ = ("counted",)
    counted: int

    def extend_joined(self, parent: BlockHash, tokens: TokenIds) -> bytes:
        object.__setattr__(self, "counted", len(tokens))
        return BlockHasher.extend_joined(self, parent, tokens)


def test_a_count_between_two_turns_does_not_cost_the_names_of_what_is_known() -> None:
    renderer, hasher = ChatRenderer(_FAMILIES["chatml"][1]), _CountingHasher(key=b"k" * 32, block_size=4)
    begun = (message("user", "hi " * 400),)
    renderer.render(_ANNA, Chat(messages=begun)).block_names(hasher, _ROOT)
    following = Chat(messages=(*begun, message("assistant", "hello"), message("user", "next")))
    renderer.render(_ANNA, following)  # a count asks for no names

    prompt = renderer.render(_ANNA, following)

    assert prompt.block_names(hasher, _ROOT) == _HASHER.extend_joined(_ROOT, prompt.tokens)
    assert hasher.counted < len(prompt.tokens) / 4


def test_a_version_that_is_asked_for_again_counts_with_its_ids() -> None:
    renderer = ChatRenderer(_FAMILIES["chatml"][1])
    asked = (message("user", "x" * 20_000),)
    later = (*asked, message("assistant", "yes"), message("user", "more"))
    for messages in (asked, later):
        renderer.render(_ANNA, Chat(messages=messages))
    shared = renderer.memory_bytes()["conversations"]
    renderer.render(_ANNA, Chat(messages=asked))
    assert renderer.memory_bytes()["conversations"] > shared + 20_000


def test_versions_of_one_conversation_share_their_ids() -> None:
    renderer = ChatRenderer(_FAMILIES["chatml"][1])
    messages = [message("user", "hi")]
    for n in range(30):
        prompt = renderer.render(_ANNA, Chat(messages=tuple(messages)))
        assert prompt.known is not None
        before = prompt.known
        messages += [message("assistant", f"{n}"), message("user", "more")]
    assert len(renderer._known) == 2
    after = renderer.render(_ANNA, Chat(messages=tuple(messages))).known
    assert after is not None
    assert np.array_equal(after.ids[: before.num_tokens], before.ids)
