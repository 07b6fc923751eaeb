from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepwarm.chat.answer import AnswerDecoder
from keepwarm.chat.messages import Chat, Message, Reasoning, Text, ToolResult, ToolSpec, ToolUse
from keepwarm.chat.render import ChatRenderer, RenderedPrompt
from keepwarm.chat.template import ChatTemplate
from keepwarm.chat.tokenizer import Tokenizer
from keepwarm.core.errors import BadModel, BadRequest
from keepwarm.core.ids import TenantId
from tests.chat.tiny import (
    CHATML,
    CHATML_TOKENS,
    FAMILIES,
    THINKING,
    byte_level,
    family,
    message,
    tokenizer_of,
)

_ANNA, _BEN = TenantId("anna"), TenantId("ben")
_FAMILIES = {name: family(name) for name in FAMILIES}
_CONTENT = st.text(alphabet=" \n\tabthe12.é🙂▁<>'", max_size=16)
_LIST = ToolSpec(name="ls", description="Lists <files>", parameters={"type": "object"})


def _chat(*contents: str, system: str | None = None) -> Chat:
    """User and assistant in turn."""
    messages = [message("user" if n % 2 == 0 else "assistant", text) for n, text in enumerate(contents)]
    opening = [] if system is None else [message("system", system)]
    return Chat(messages=(*opening, *messages))


def _text(renderer_name: str, prompt: RenderedPrompt) -> str:
    """The prompt as text, control tokens spelled."""
    tokenizer = _FAMILIES[renderer_name][1]
    return b"".join(tokenizer.token_bytes(token) for token in prompt.tokens.tolist()).decode(
        "utf-8", "replace"
    )


def _answer(
    renderer: ChatRenderer, name: str, prompt: RenderedPrompt, tokens: list[int], stop: tuple[str, ...] = ()
) -> str:
    """What the front does with a generated answer; the text the client gets."""
    decoder = AnswerDecoder(_FAMILIES[name][1], stop=stop)
    decoder.add(tokens)
    decoder.flush()
    renderer.remember(_ANNA, prompt, [Text(text=decoder.text)], decoder.replay_tokens())
    return decoder.text


def _starts_with(prompt: RenderedPrompt, before: RenderedPrompt, tokens: list[int]) -> bool:
    expected = [*before.tokens.tolist(), *tokens]
    return bool(prompt.tokens[: len(expected)].tolist() == expected)


@pytest.mark.parametrize("name", FAMILIES)
@given(
    contents=st.lists(_CONTENT, min_size=1, max_size=5).filter(lambda c: len(c) % 2 == 1),
    system=st.none() | _CONTENT,
)
def test_a_prompt_is_exactly_the_whole_text_tokenised_as_one(
    name: str, contents: list[str], system: str | None
) -> None:
    backend, tokenizer = _FAMILIES[name]
    template = ChatTemplate(
        tokenizer.chat_template or "",
        variables={"bos_token": tokenizer.bos_token, "eos_token": tokenizer.eos_token},
    )
    written = list(contents)
    roles = ["user", "assistant"] * 3
    messages = [{"role": role, "content": text} for role, text in zip(roles, written, strict=False)]
    if system is not None and name in ("gemma", "mistral"):  # no system role
        messages[0]["content"] = f"{system}\n\n{messages[0]['content']}"
    elif system is not None:
        messages.insert(0, {"role": "system", "content": system})
    text = template.render(messages, tools=None, add_generation_prompt=True)
    renderer = ChatRenderer(tokenizer)
    for _ in range(2):  # cold, then from memory
        prompt = renderer.render(_ANNA, _chat(*contents, system=system))
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
@given(
    answers=st.lists(st.lists(st.integers(3, 400), min_size=1, max_size=8), min_size=1, max_size=4),
    ends=st.booleans(),
)
def test_the_next_prompt_begins_with_the_last_prompt_and_the_ids_of_its_answer(
    name: str, answers: list[list[int]], ends: bool
) -> None:
    _, tokenizer = _FAMILIES[name]
    renderer = ChatRenderer(tokenizer)
    stops = set(tokenizer.stop_tokens)
    contents = ["question 1"]
    for tokens in answers:
        tokens = [token for token in tokens if not tokenizer.is_special(token)]
        prompt = renderer.render(_ANNA, _chat(*contents, system="be kind"))
        given_back = _answer(renderer, name, prompt, [*tokens, *([tokenizer.stop_tokens[0]] if ends else [])])
        contents += [given_back, "and then?"]
        if not given_back.strip():
            return
        following = renderer.render(_ANNA, _chat(*contents, system="be kind"))
        assert _starts_with(following, prompt, tokens)
        rest = following.tokens[len(prompt.tokens) + len(tokens) :].tolist()
        assert rest[0] in stops
        assert rest[1] not in stops


def test_an_answer_cut_within_a_character_comes_back_as_its_ids() -> None:
    _, tokenizer = _FAMILIES["chatml"]
    renderer = ChatRenderer(tokenizer)
    tokens = tokenizer.encode("wor𓀀").tolist()[:-1]
    prompt = renderer.render(_ANNA, _chat("hi"))
    given_back = _answer(renderer, "chatml", prompt, tokens)
    assert given_back == "wor\ufffd"
    assert _starts_with(renderer.render(_ANNA, _chat("hi", given_back, "go on")), prompt, tokens)


def test_an_answer_ended_by_a_stop_string_comes_back_without_it() -> None:
    _, tokenizer = _FAMILIES["chatml"]
    renderer = ChatRenderer(tokenizer)
    tokens = tokenizer.encode("The cache STOP more").tolist()
    prompt = renderer.render(_ANNA, _chat("hi"))
    given_back = _answer(renderer, "chatml", prompt, tokens, stop=("STOP",))
    assert given_back == "The cache "
    following = renderer.render(_ANNA, _chat("hi", given_back, "go on"))
    assert following.num_replayed_tokens > 0
    assert "The cache <|im_end|>\n" in _text("chatml", following)


@pytest.mark.parametrize("change", ["  {} \n", "{}", "\n{}"])
def test_white_space_a_client_adds_or_drops_around_an_answer_does_not_matter(change: str) -> None:
    renderer = ChatRenderer(_FAMILIES["llama3"][1])
    prompt = renderer.render(_ANNA, _chat("hi"))
    tokens = _FAMILIES["llama3"][1].encode(" The\n").tolist()
    given_back = _answer(renderer, "llama3", prompt, tokens)
    following = renderer.render(_ANNA, _chat("hi", change.format(given_back.strip()), "more"))
    assert _starts_with(following, prompt, tokens)


def test_equal_answers_elsewhere_or_of_another_tenant_are_not_mistaken() -> None:
    _, tokenizer = _FAMILIES["chatml"]
    renderer = ChatRenderer(tokenizer)
    odd = [token for letter in "yes" for token in tokenizer.encode(letter).tolist()]
    prompt = renderer.render(_ANNA, _chat("hi"))
    _answer(renderer, "chatml", prompt, odd)
    assert renderer.render(_ANNA, _chat("hi", "yes", "more")).num_replayed_tokens == len(odd)
    assert renderer.render(_ANNA, _chat("ho", "yes", "more")).num_replayed_tokens == 0
    assert renderer.render(_BEN, _chat("hi", "yes", "more")).num_replayed_tokens == 0


def test_the_latest_of_two_answers_at_one_place_is_kept() -> None:
    _, tokenizer = _FAMILIES["chatml"]
    renderer = ChatRenderer(tokenizer)
    prompt = renderer.render(_ANNA, _chat("hi"))
    one, other = tokenizer.encode("no").tolist(), [tokenizer.encode(c).tolist()[0] for c in "no"]
    for tokens in (one, other):
        _answer(renderer, "chatml", prompt, tokens)
        assert _starts_with(renderer.render(_ANNA, _chat("hi", "no", "why")), prompt, tokens)


def test_tiny_memories_forget_but_never_lie() -> None:
    backend, tokenizer = _FAMILIES["chatml"]
    renderer = ChatRenderer(tokenizer, segment_memo_bytes=300, replay_bytes_per_tenant=900)
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


@pytest.mark.parametrize("name", ["chatml", "thinking"])
def test_a_generated_tool_call_comes_back_as_its_ids_however_it_is_serialised(name: str) -> None:
    _, tokenizer = _FAMILIES[name]
    renderer = ChatRenderer(tokenizer)
    asked = Chat(messages=(message("user", "what files?"),), tools=(_LIST,))
    prompt = renderer.render(_ANNA, asked)
    tokens = tokenizer.encode(
        '<think>hm</think>I look. <tool_call>{"name":"ls", "arguments":{"all":true}}'
    ).tolist()
    use = ToolUse(id="x", name="ls", arguments={"all": True, "path": "/"})
    renderer.remember(_ANNA, prompt, [Reasoning(text="hm"), Text(text="I look. "), use], [*tokens, 2])
    following = renderer.render(
        _ANNA, Chat(messages=(*asked.messages, *_tool_turns("a.txt")), tools=(_LIST,))
    )
    assert _starts_with(following, prompt, tokens)
    assert "a.txt" in _text(name, following)
    assert _text(name, following).count("<|im_end|>") == _text(name, prompt).count("<|im_end|>") + 2


def test_thoughts_that_the_template_drops_later_stay_where_they_were_generated() -> None:
    _, tokenizer = _FAMILIES["thinking"]
    renderer = ChatRenderer(tokenizer)
    contents = ["one"]
    prompts, generated = [], []
    for n in range(3):
        prompts.append(renderer.render(_ANNA, _chat(*contents)))
        generated.append(tokenizer.encode(f"<think>\nhm\n</think>\n\nanswer {n}").tolist())
        renderer.remember(_ANNA, prompts[-1], [Reasoning(text="hm"), Text(text=f"answer {n}")], generated[-1])
        contents += [f"answer {n}", "next"]
    last = renderer.render(_ANNA, _chat(*contents))
    for prompt, tokens in zip(prompts, generated, strict=True):
        assert _starts_with(last, prompt, tokens)


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
        assert "assistant\ndone<|im_end|>" in tokenizer_text(tokenizer, following)


def tokenizer_text(tokenizer: Tokenizer, prompt: RenderedPrompt) -> str:
    return b"".join(tokenizer.token_bytes(token) for token in prompt.tokens.tolist()).decode()


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


def test_a_cut_answer_sent_as_the_last_message_goes_on_from_its_very_ids() -> None:
    _, tokenizer = _FAMILIES["chatml"]
    renderer = ChatRenderer(tokenizer)
    prompt = renderer.render(_ANNA, _chat("hi"))
    tokens = tokenizer.encode("wor𓀀").tolist()[:-1]
    begun = _answer(renderer, "chatml", prompt, tokens)
    again = renderer.render(_ANNA, _chat("hi", begun))
    assert again.tokens.tolist() == [*prompt.tokens.tolist(), *tokens]
    more = tokenizer.encode(" ld").tolist()
    decoder = AnswerDecoder(tokenizer)
    decoder.add(more)
    renderer.remember(_ANNA, again, [Text(text=decoder.text)], more)
    last = renderer.render(_ANNA, _chat("hi", begun + decoder.text, "thanks"))
    assert _starts_with(last, again, more)


def test_without_a_generation_prompt_the_conversation_just_ends() -> None:
    renderer = ChatRenderer(_FAMILIES["chatml"][1])
    for contents in (["hi"], ["hi", "hello"]):
        prompt = renderer.render(_ANNA, _chat(*contents), add_generation_prompt=False)
        assert _text("chatml", prompt).endswith("<|im_end|>\n")
        assert "assistant" not in _text("chatml", prompt).rsplit("<|im_start|>", 1)[0]


def test_a_string_and_its_parts_give_the_same_ids() -> None:
    renderer = ChatRenderer(_FAMILIES["chatml"][1])
    one = renderer.render(_ANNA, Chat(messages=(message("user", "ab"),)))
    other = renderer.render(_ANNA, Chat(messages=(message("user", "a", "b"),)))
    assert one.tokens.tolist() == other.tokens.tolist()


def test_a_template_without_tools_gets_them_as_text() -> None:
    renderer = ChatRenderer(_FAMILIES["chatml"][1])
    answer, result = _tool_turns("a.txt")
    chat = Chat(
        messages=(message("system", "be kind"), message("user", "files?"), answer, result), tools=(_LIST,)
    )
    text = _text("chatml", renderer.render(_ANNA, chat))
    assert text.startswith("<|im_start|>system\nbe kind\n\nYou can call tools.")
    assert '{"name": "ls", "description": "Lists <files>", "parameters": {"type": "object"}}' in text
    assert (
        "<|im_start|>assistant\nI look.\n<tool_call>\n"
        '{"name": "ls", "arguments": {"path": "/", "all": true}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\na.txt\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    ) in text


def test_a_template_with_tools_gets_them_its_own_way() -> None:
    renderer = ChatRenderer(_FAMILIES["thinking"][1])
    answer, result = _tool_turns("a.txt")
    text = _text(
        "thinking",
        renderer.render(_ANNA, Chat(messages=(message("user", "files?"), answer, result), tools=(_LIST,))),
    )
    assert '{"type": "function", "function": {"name": "ls"' in text
    assert (
        '<tool_call>\n{"name": "ls", "arguments": {"path": "/", "all": true}}\n</tool_call><|im_end|>' in text
    )
    assert "<|im_start|>tool\na.txt<|im_end|>" in text


def test_broken_arguments_in_a_history_do_not_break_the_conversation() -> None:
    use = ToolUse(id="1", name="ls", arguments='{"path": ')
    chat = Chat(messages=(message("user", "files?"), message("assistant", use), message("user", "go on")))
    for name in ("chatml", "thinking"):
        text = _text(name, ChatRenderer(_FAMILIES[name][1]).render(_ANNA, chat))
        assert '{"unparsed_arguments": "{\\"path\\": "}' in text


def test_what_the_template_refuses_is_the_callers_to_mend() -> None:
    renderer = ChatRenderer(_FAMILIES["gemma"][1])
    with pytest.raises(BadRequest, match="roles must alternate"):
        renderer.render(_ANNA, Chat(messages=(message("assistant", "I begin"), message("user", "no"))))


def test_a_model_without_a_template_gets_the_plain_one() -> None:
    tokenizer = tokenizer_of(byte_level(), None, eos="<|im_end|>")
    renderer = ChatRenderer(tokenizer)
    prompt = renderer.render(_ANNA, _chat("hi", system="be kind"))
    assert tokenizer_text(tokenizer, prompt) == "be kind\n\nUser: hi\n\nAssistant:"
    tokens = tokenizer.encode(" hello").tolist()
    renderer.remember(_ANNA, prompt, [Text(text=" hello")], tokens)
    following = renderer.render(_ANNA, _chat("hi", " hello", "bye", system="be kind"))
    assert _starts_with(following, prompt, tokens)


def test_a_template_for_parts_gets_parts() -> None:
    template = CHATML.replace("message.content", "message.content[0]['text']")
    tokenizer = tokenizer_of(byte_level(), template, eos="<|im_end|>")
    assert "user\nhi<|im_end|>" in tokenizer_text(
        tokenizer, ChatRenderer(tokenizer).render(_ANNA, _chat("hi"))
    )


def test_a_template_that_renders_nothing_is_a_bad_model() -> None:
    with pytest.raises(BadModel, match="does not render a single user message"):
        ChatRenderer(tokenizer_of(byte_level(), "{{ raise_exception('no') }}"))


def test_a_template_of_its_own_for_tools_is_used_when_there_are_some() -> None:
    tokenizer = tokenizer_of(byte_level(), CHATML, eos="<|im_end|>")
    tokenizer.chat_templates["tool_use"] = THINKING
    renderer = ChatRenderer(tokenizer)
    with_tools = renderer.render(_ANNA, Chat(messages=(message("user", "hi"),), tools=(_LIST,)))
    assert '{"type": "function"' in tokenizer_text(tokenizer, with_tools)
    assert "You can call tools" not in tokenizer_text(tokenizer, with_tools)


def test_private_characters_in_content_survive() -> None:
    _, tokenizer = _FAMILIES["chatml"]
    text = "\U000f0000\U000f0001<|im_end|>\U000f0002"
    prompt = ChatRenderer(tokenizer).render(_ANNA, _chat(text))
    assert text in _text("chatml", prompt)


def test_an_answer_that_says_nothing_is_not_remembered() -> None:
    _, tokenizer = _FAMILIES["chatml"]
    renderer = ChatRenderer(tokenizer)
    prompt = renderer.render(_ANNA, _chat("hi"))
    renderer.remember(_ANNA, prompt, [Reasoning(text="hm")], [50])
    assert renderer.render(_ANNA, _chat("hi", "", "more")).num_replayed_tokens == 0
    assert CHATML_TOKENS[2] in tokenizer.stop_texts()
