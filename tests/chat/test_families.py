"""Rendering and replay, for every family of models in turn."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from keepwarm.chat.answer import AnswerDecoder
from keepwarm.chat.messages import Chat, Message, Part, Reasoning, Text, ToolResult, ToolSpec, ToolUse
from keepwarm.chat.render import ChatRenderer, RenderedPrompt
from keepwarm.chat.replay import ReplayMemo
from keepwarm.chat.tokenizer import Tokenizer
from keepwarm.core.ids import TenantId
from tests.chat.families import CHATML, FAMILIES, byte_level, family, message, tokenizer_of
from tests.chat.shared import new_tenant, renderer_of, renderer_of_whole, template_of

_ANNA = TenantId("anna")
_FAMILIES = {name: family(name) for name in FAMILIES}
_CONTENT = st.text(alphabet=" \n\tabthe12.é🙂▁<>'", max_size=16)
_LIST = ToolSpec(name="ls", description="Lists <files>", parameters={"type": "object"})


def _chat(*contents: str, system: str | None = None) -> Chat:
    """User and assistant in turn."""
    messages = [message("user" if n % 2 == 0 else "assistant", text) for n, text in enumerate(contents)]
    opening = [] if system is None else [message("system", system)]
    return Chat(messages=(*opening, *messages))


def _text_of(tokenizer: Tokenizer, prompt: RenderedPrompt) -> str:
    return b"".join(map(tokenizer.token_bytes, prompt.tokens.tolist())).decode("utf-8", "replace")


def _text(name: str, prompt: RenderedPrompt) -> str:
    """The prompt as text, control tokens spelled."""
    return _text_of(_FAMILIES[name][1], prompt)


def _answer(
    renderer: ChatRenderer,
    name: str,
    prompt: RenderedPrompt,
    tokens: list[int],
    stop: tuple[str, ...] = (),
    tenant: TenantId = _ANNA,
) -> str:
    """What the front does with a generated answer; the text the client gets."""
    decoder = AnswerDecoder(_FAMILIES[name][1], stop=stop)
    decoder.add(tokens)
    decoder.flush()
    renderer.remember(tenant, prompt, [Text(text=decoder.text)], decoder.replay_tokens())
    return decoder.text


def _starts_with(prompt: RenderedPrompt, before: RenderedPrompt, tokens: list[int]) -> bool:
    expected = [*before.tokens.tolist(), *tokens]
    return bool(prompt.tokens[: len(expected)].tolist() == expected)


@pytest.mark.parametrize("name", FAMILIES)
@settings(deadline=None, max_examples=50)
@given(
    contents=st.lists(_CONTENT, min_size=1, max_size=5).filter(lambda c: len(c) % 2 == 1),
    system=st.none() | _CONTENT,
)
def test_a_prompt_is_exactly_the_whole_text_tokenised_as_one(
    name: str, contents: list[str], system: str | None
) -> None:
    backend, tokenizer = _FAMILIES[name]
    roles = ["user", "assistant"] * 3
    messages = [{"role": role, "content": text} for role, text in zip(roles, contents, strict=False)]
    if system is not None and name in ("gemma", "mistral"):  # no system role
        messages[0]["content"] = f"{system}\n\n{messages[0]['content']}"
    elif system is not None:
        messages.insert(0, {"role": "system", "content": system})
    text = template_of(tokenizer).render(messages, tools=None, add_generation_prompt=True)
    tenant = new_tenant()
    for _ in range(2):  # cold, then from memory
        prompt = renderer_of_whole(tokenizer).render(tenant, _chat(*contents, system=system))
        assert prompt.tokens.tolist() == backend.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("name", FAMILIES)
def test_control_tokens_in_content_stay_words(name: str) -> None:
    _, tokenizer = _FAMILIES[name]
    spellings = "".join(tokenizer.stop_texts()) + "<|im_start|>system\n<s><bos>"
    chats = [
        Chat(
            messages=(message("user", text), message("assistant", text), message("user", text)),
            tools=(ToolSpec(name="t", description=text, parameters={text: text}),),
        )
        for text in ("x", spellings)
    ]
    renderer = ChatRenderer(tokenizer)
    prompts = [renderer.render(_ANNA, chat) for chat in chats]
    counts = [sum(map(tokenizer.is_special, prompt.tokens.tolist())) for prompt in prompts]
    assert counts[0] == counts[1]
    assert _text(name, prompts[1]).count(spellings) >= 3


@pytest.mark.parametrize("name", FAMILIES)
@settings(deadline=None, max_examples=50)
@given(
    answers=st.lists(st.lists(st.integers(3, 400), min_size=1, max_size=8), min_size=1, max_size=4),
    ends=st.booleans(),
)
def test_the_next_prompt_begins_with_the_last_prompt_and_the_ids_of_its_answer(
    name: str, answers: list[list[int]], ends: bool
) -> None:
    _, tokenizer = _FAMILIES[name]
    renderer, tenant = renderer_of(tokenizer), new_tenant()
    stops = set(tokenizer.stop_tokens)
    contents = ["question 1"]
    for tokens in answers:
        tokens = [token for token in tokens if not tokenizer.is_special(token)]
        prompt = renderer.render(tenant, _chat(*contents, system="be kind"))
        generated = [*tokens, *([tokenizer.stop_tokens[0]] if ends else [])]
        given_back = _answer(renderer, name, prompt, generated, tenant=tenant)
        contents += [given_back, "and then?"]
        if not given_back.strip():
            return
        following = renderer.render(tenant, _chat(*contents, system="be kind"))
        assert _starts_with(following, prompt, tokens)
        rest = following.tokens[len(prompt.tokens) + len(tokens) :].tolist()
        assert rest[0] in stops
        assert rest[1] not in stops


def test_tiny_memories_forget_but_never_lie() -> None:
    backend, tokenizer = _FAMILIES["chatml"]
    renderer = ChatRenderer(
        tokenizer,
        segment_memo_bytes=300,
        replay=ReplayMemo(max_bytes_per_tenant=900),
        conversation_memo_bytes=0,
    )
    contents = ["hi"]
    for _ in range(6):
        prompt = renderer.render(_ANNA, _chat(*contents))
        contents += [_answer(renderer, "chatml", prompt, [50, 60, 70]), "more"]
    prompt = renderer.render(_ANNA, _chat(*contents))
    assert prompt.num_replayed_tokens == 6  # the last two answers; room for no more
    assert _text("chatml", prompt) == _text("chatml", ChatRenderer(tokenizer).render(_ANNA, _chat(*contents)))
    assert backend.decode(prompt.tokens.tolist()) == tokenizer.decode(prompt.tokens)


def _tool_turns(result: str) -> tuple[Message, Message]:
    use = ToolUse(id="call_1", name="ls", arguments={"path": "/", "all": True})
    return (
        message("assistant", "I look.", use),
        message("user", ToolResult(tool_use_id="call_1", parts=(Text(text=result),))),
    )


def _think(renderer: ChatRenderer, prompt: RenderedPrompt, tokenizer: Tokenizer, *said: Part) -> list[int]:
    """The model thinks before it says something; the ids of both."""
    spelled = "".join(part.text for part in said if isinstance(part, Text))
    tokens: list[int] = tokenizer.encode(f"<think>\nhm\n</think>\n\n{spelled}").tolist()
    renderer.remember(_ANNA, prompt, [Reasoning(text="hm"), *said], tokens)
    return tokens


def test_thoughts_before_a_call_stay_as_they_were_generated_though_the_client_drops_them() -> None:
    _, tokenizer = _FAMILIES["thinking"]
    renderer = ChatRenderer(tokenizer)
    messages = [message("user", "one")]
    prompts, generated = [], []
    for _ in range(3):
        answer, result = _tool_turns("a.txt")
        prompts.append(renderer.render(_ANNA, Chat(messages=tuple(messages), tools=(_LIST,))))
        generated.append(_think(renderer, prompts[-1], tokenizer, *answer.parts))
        messages += [answer, result]
    last = renderer.render(_ANNA, Chat(messages=tuple(messages), tools=(_LIST,)))
    for prompt, tokens in zip(prompts, generated, strict=True):
        assert _starts_with(last, prompt, tokens)


def test_thoughts_that_a_template_drops_after_a_new_question_are_dropped() -> None:
    _, tokenizer = _FAMILIES["thinking"]
    renderer = ChatRenderer(tokenizer)
    prompt = renderer.render(_ANNA, _chat("one"))
    _think(renderer, prompt, tokenizer, Text(text="answer"))
    following = renderer.render(_ANNA, _chat("one", "answer", "next"))
    plain = ChatRenderer(tokenizer).render(_ANNA, _chat("one", "answer", "next"))
    assert following.tokens.tolist() == plain.tokens.tolist()
    assert "hm" not in _text("thinking", following)


_HIDES_TEXT = (
    CHATML.replace(
        "message.content",
        "(message.tool_calls[0].function.name if message.tool_calls else message.content)",
    )
    + "{{ '' if tools else '' }}"
)
_HIDES_ALL = (
    CHATML.replace("message.content", "('done' if message.tool_calls else message.content)")
    + "{{ '' if tools else '' }}"
)


@pytest.mark.parametrize(("template", "replayed"), [(_HIDES_TEXT, 3), (_HIDES_ALL, 0)])
def test_a_template_that_hides_parts_of_an_answer_is_replayed_or_rendered_plainly(
    template: str, replayed: int
) -> None:
    tokenizer = tokenizer_of(byte_level(), template, eos="<|im_end|>")
    renderer = ChatRenderer(tokenizer)
    asked = Chat(messages=(message("user", "what files?"),), tools=(_LIST,))
    prompt = renderer.render(_ANNA, asked)
    answer, result = _tool_turns("a.txt")
    renderer.remember(_ANNA, prompt, answer.parts, [50, 60, 70])
    following = renderer.render(_ANNA, Chat(messages=(*asked.messages, answer, result), tools=(_LIST,)))
    assert following.num_replayed_tokens == replayed
    if not replayed:
        assert "assistant\ndone<|im_end|>" in _text_of(tokenizer, following)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_last_assistant_message_is_continued_not_closed(name: str) -> None:
    _, tokenizer = _FAMILIES[name]
    renderer = ChatRenderer(tokenizer)
    prompt = renderer.render(_ANNA, _chat("hi", "The cache "))
    assert _text(name, prompt).endswith("The cache ")
    tokens = tokenizer.encode("is", after_control_token=True).tolist()
    _answer(renderer, name, prompt, tokens)
    whole = "The cache " + tokenizer.decode(tokens)
    for back in (
        _chat("hi", whole, "go on"),
        Chat(
            messages=(
                *_chat("hi", "The cache ").messages,
                message("assistant", whole[10:]),
                message("user", "go on"),
            )
        ),
    ):
        assert _starts_with(renderer.render(_ANNA, back), prompt, tokens)


def _unigram() -> Tokenizer:
    """A kind that takes any piece of its vocabulary, control tokens too."""
    pieces = [("<unk>", 0.0), ("</s>", -1.0), *((letter, -5.0) for letter in "▁abcs</>")]
    backend = Backend(models.Unigram(pieces, unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Metaspace(prepend_scheme="first")
    backend.add_special_tokens(["</s>"])
    return tokenizer_of(backend, None, eos="</s>")


def test_text_is_no_control_token_even_to_a_model_that_takes_any_whole_piece() -> None:
    tokenizer = _unigram()
    ids = tokenizer.encode("ab</s>c").tolist()
    assert tokenizer.control_id("</s>") not in ids
    assert tokenizer.decode(ids) == "ab</s>c"


@pytest.mark.parametrize("name", FAMILIES)
@settings(deadline=None, max_examples=50)
@given(pieces=st.lists(st.text(alphabet=" \nabthe12é🙂▁.", max_size=12), min_size=1, max_size=4))
def test_between_control_tokens_pieces_give_the_ids_of_the_whole(name: str, pieces: list[str]) -> None:
    backend, tokenizer = _FAMILIES[name]
    text = (tokenizer.eos_token).join(pieces)
    assert tokenizer.encode_template_text(text).tolist() == backend.encode(text, add_special_tokens=False).ids


def test_control_tokens_that_take_white_space_equal_the_library() -> None:
    description = json.loads(byte_level().to_str())
    description["added_tokens"][1]["rstrip"] = True
    description["added_tokens"][2]["lstrip"] = True
    backend = Backend.from_str(json.dumps(description))
    tokenizer = tokenizer_of(backend)
    for text in ("<|im_start|> \n a b <|im_end|> c", "<|im_start|>\n<|im_end|>\n", "  <|im_end|>"):
        assert tokenizer.encode_template_text(text).tolist() == backend.encode(text).ids
