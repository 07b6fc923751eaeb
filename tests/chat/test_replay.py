"""The next prompt begins with the last one and the very ids that were generated for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keepwarm.chat.answer import AnswerDecoder
from keepwarm.chat.messages import Chat, Message, Part, Reasoning, Text, ToolResult, ToolSpec, ToolUse
from keepwarm.chat.render import ChatRenderer, RenderedPrompt
from keepwarm.chat.replay import RememberedAnswer, ReplayMemo
from keepwarm.chat.tokenizer import Tokenizer
from keepwarm.core.ids import TenantId, token_ids
from tests.chat.conversations import assistant, chat_of, system, user
from tests.chat.shared import new_tenant, renderer_of
from tests.chat.tiny_tokenizers import CHATML, chatml_tokenizer, pieces_tokenizer

ADA, BOB = TenantId("ada"), TenantId("bob")
quickly = settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
ASKED = (system("be kind"), user("tell me"))


def generate(
    renderer: ChatRenderer, tokenizer: Tokenizer, chat: Chat, tokens: list[int], tenant: TenantId = ADA
) -> tuple[list[int], str]:
    """A turn in which the model says these tokens: prompt and answer as ids, and the answer's text."""
    prompt = renderer.render(tenant, chat)
    decoder = AnswerDecoder(tokenizer)
    decoder.add(tokens)
    decoder.flush()
    renderer.remember(tenant, prompt, (Text(text=decoder.text),), decoder.replay_tokens())
    return [*prompt.tokens.tolist(), *tokens], decoder.text


def spelled_singly(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of a text, one a character: not as the text would be tokenised."""
    return [token for character in text for token in tokenizer.encode_inside(character).tolist()]


@quickly
@given(drawn=st.data())
def test_any_tokens_at_all_are_replayed_when_their_text_comes_back(
    tokenizer: Tokenizer, drawn: st.DataObject
) -> None:
    some = st.integers(0, tokenizer.vocab_size - 1).filter(lambda token: not tokenizer.is_special(token))
    tokens = drawn.draw(
        st.lists(some, min_size=1, max_size=12).filter(lambda ids: tokenizer.decode(ids).strip())
    )
    renderer, tenant = renderer_of(tokenizer), new_tenant()

    sequence, text = generate(renderer, tokenizer, chat_of(*ASKED), tokens, tenant)
    following = renderer.render(tenant, chat_of(*ASKED, assistant(text), user("more")))

    assert following.tokens[: len(sequence)].tolist() == sequence
    assert following.num_replayed_tokens == len(tokens)
    assert following.tokens[len(sequence)] in tokenizer.stop_tokens


def test_a_conversation_of_many_turns_only_ever_grows(tokenizer: Tokenizer) -> None:
    renderer = ChatRenderer(tokenizer)
    messages = list(ASKED)
    said = ["hello the", "hello the", " w", "\n\nhello \n", "größer 🎈"]

    for number, answer in enumerate(said):
        tokens = spelled_singly(tokenizer, answer)
        sequence, text = generate(renderer, tokenizer, chat_of(*messages), tokens)
        messages += [assistant(text), user(f"and {number}?")]
        following = renderer.render(ADA, chat_of(*messages))
        assert following.tokens[: len(sequence)].tolist() == sequence

    assert following.num_replayed_tokens == sum(len(spelled_singly(tokenizer, answer)) for answer in said)


def test_an_answer_cut_inside_a_character_is_replayed(tokenizer: Tokenizer) -> None:
    renderer = ChatRenderer(tokenizer)
    cut = tokenizer.encode("hello 🎈").tolist()[:-1]

    sequence, text = generate(renderer, tokenizer, chat_of(*ASKED), cut)

    assert text == "hello \ufffd"
    following = renderer.render(ADA, chat_of(*ASKED, assistant(text), user("more")))
    assert following.tokens[: len(sequence)].tolist() == sequence


def test_the_stop_token_that_was_sampled_is_not_doubled(tokenizer: Tokenizer) -> None:
    renderer = ChatRenderer(tokenizer)
    stop = tokenizer.stop_tokens[0]

    sequence, text = generate(
        renderer, tokenizer, chat_of(*ASKED), [*tokenizer.encode("hello").tolist(), stop]
    )
    following = renderer.render(ADA, chat_of(*ASKED, assistant(text), user("more"))).tokens.tolist()

    assert following[: len(sequence)] == sequence
    assert following[len(sequence)] != stop


def test_white_space_that_a_client_takes_away_does_not_matter(chatml: Tokenizer) -> None:
    renderer = ChatRenderer(chatml)

    sequence, text = generate(renderer, chatml, chat_of(*ASKED), chatml.encode("\n hello \n").tolist())
    following = renderer.render(ADA, chat_of(*ASKED, assistant(text.strip()), user("more")))

    assert following.tokens[: len(sequence)].tolist() == sequence


def test_an_answer_that_was_changed_is_read_as_text(chatml: Tokenizer) -> None:
    renderer = ChatRenderer(chatml)
    changed = chat_of(*ASKED, assistant("hello you"), user("more"))

    generate(renderer, chatml, chat_of(*ASKED), spelled_singly(chatml, "hello"))
    following = renderer.render(ADA, changed)

    assert following.num_replayed_tokens == 0
    assert following.tokens.tolist() == ChatRenderer(chatml).render(ADA, changed).tokens.tolist()


def test_tenants_do_not_see_each_others_answers(chatml: Tokenizer) -> None:
    renderer = ChatRenderer(chatml)

    _, text = generate(renderer, chatml, chat_of(*ASKED), spelled_singly(chatml, "hello"))
    chat = chat_of(*ASKED, assistant(text), user("more"))

    assert renderer.render(ADA, chat).num_replayed_tokens == 5
    assert renderer.render(BOB, chat).num_replayed_tokens == 0


@pytest.mark.parametrize(
    "elsewhere",
    [
        (user("tell me"),),
        (system("be kind"), user("tell me more")),
        (system("be kind"), user("tell me"), assistant("hello"), user("again")),
    ],
)
def test_the_same_short_answer_elsewhere_is_another_answer(
    chatml: Tokenizer, elsewhere: tuple[Message, ...]
) -> None:
    renderer = ChatRenderer(chatml)
    here = spelled_singly(chatml, "hello")

    generate(renderer, chatml, chat_of(*ASKED), here)
    following = renderer.render(ADA, chat_of(*elsewhere, assistant("hello"), user("more")))

    assert following.num_replayed_tokens == (len(here) if len(elsewhere) > 2 else 0)


def test_two_short_answers_at_two_places_keep_their_own_ids(chatml: Tokenizer) -> None:
    renderer = ChatRenderer(chatml)
    whole, single = chatml.encode("hello").tolist(), spelled_singly(chatml, "hello")

    generate(renderer, chatml, chat_of(*ASKED), single)
    second = chat_of(*ASKED, assistant("hello"), user("again"))
    sequence, _ = generate(renderer, chatml, second, whole)
    third = renderer.render(ADA, chat_of(*second.messages, assistant("hello"), user("more")))

    assert third.tokens[: len(sequence)].tolist() == sequence
    assert third.num_replayed_tokens == len(whole) + len(single)


def test_a_begun_answer_and_what_was_generated_after_it_are_replayed_together(tokenizer: Tokenizer) -> None:
    renderer = ChatRenderer(tokenizer)
    begun = chat_of(*ASKED, assistant("hello th"))

    sequence, text = generate(renderer, tokenizer, begun, spelled_singly(tokenizer, "ere"))

    for spoken in ([assistant("hello th" + text)], [assistant("hello th"), assistant(text)]):
        following = renderer.render(ADA, chat_of(*ASKED, *spoken, user("more")))
        assert following.tokens[: len(sequence)].tolist() == sequence


def test_an_answer_that_ran_out_of_tokens_is_continued_from_its_own_ids(tokenizer: Tokenizer) -> None:
    renderer = ChatRenderer(tokenizer)

    sequence, text = generate(renderer, tokenizer, chat_of(*ASKED), spelled_singly(tokenizer, "hello th"))
    begun = chat_of(*ASKED, assistant(text))
    assert renderer.render(ADA, begun).tokens.tolist() == sequence

    sequence, more = generate(renderer, tokenizer, begun, spelled_singly(tokenizer, "ere"))
    following = renderer.render(ADA, chat_of(*ASKED, assistant(text + more), user("more")))
    assert following.tokens[: len(sequence)].tolist() == sequence


def test_what_is_continued_is_what_the_client_sent_to_the_last_space(chatml: Tokenizer) -> None:
    renderer = ChatRenderer(chatml)

    generate(renderer, chatml, chat_of(*ASKED), chatml.encode("hello\n\n\n").tolist())
    prompt = renderer.render(ADA, chat_of(*ASKED, assistant("hello")))

    assert chatml.decode(prompt.tokens).endswith("assistant\nhello")


def remember_call(
    renderer: ChatRenderer, chat: Chat, parts: tuple[Part, ...], tokens: list[int]
) -> list[int]:
    prompt: RenderedPrompt = renderer.render(ADA, chat)
    renderer.remember(ADA, prompt, parts, tokens)
    return [*prompt.tokens.tolist(), *tokens]


@pytest.mark.parametrize("takes_tools", [False, True])
def test_a_call_is_replayed_though_the_client_renames_it_and_orders_its_arguments(
    tmp_path: Path, takes_tools: bool
) -> None:
    calls = "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments }}{% endfor %}"
    template = (
        CHATML.replace("message", "m")
        .replace("in ms", "in messages")
        .replace("<|im_end|>", calls + "<|im_end|>")
    )
    tokenizer = chatml_tokenizer(
        tmp_path, template="{% if tools %}{{ tools }}{% endif %}" + template if takes_tools else CHATML
    )
    renderer = ChatRenderer(tokenizer)
    tools = (ToolSpec(name="weather", description="", parameters={}),)
    asked = Chat(messages=(user("weather?"),), tools=tools)
    said = ToolUse(id="call_1", name="weather", arguments={"a": 1, "b": 2})
    sent = ToolUse(id="toolu_9", name="weather", arguments={"b": 2, "a": 1})
    tokens = spelled_singly(tokenizer, 'look {"weather"  : ')

    sequence = remember_call(renderer, asked, (Reasoning(text="hm"), Text(text="look "), said), tokens)
    result = Message(role="user", parts=(ToolResult(tool_use_id="toolu_9", parts=(Text(text="sun"),)),))
    answer = Message(role="assistant", parts=(Text(text="look"), sent))
    following = renderer.render(ADA, Chat(messages=(user("weather?"), answer, result), tools=tools))

    assert following.tokens[: len(sequence)].tolist() == sequence


def test_a_header_that_only_invites_is_replayed_too(tmp_path: Path) -> None:
    inviting = CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
    tokenizer = chatml_tokenizer(tmp_path, template=inviting)
    renderer = ChatRenderer(tokenizer)

    sequence, text = generate(
        renderer, tokenizer, chat_of(*ASKED), spelled_singly(tokenizer, "hm</think>hello")
    )
    following = renderer.render(ADA, chat_of(*ASKED, assistant(text), user("more")))

    assert following.tokens[: len(sequence)].tolist() == sequence


STRIPPING = [
    ("trims", CHATML.replace("message['content']", "message['content'] | trim"), True),
    (
        "hides what was thought",
        CHATML.replace("message['content']", "message['content'].split('</think>')[-1].lstrip('\\n')"),
        True,
    ),
    ("shows ten characters", CHATML.replace("message['content']", "message['content'][:2]"), False),
    (
        "hides answers",
        CHATML.replace(
            "message['content']", "(message['content'] if message['role'] != 'assistant' else '')"
        ),
        False,
    ),
]


@pytest.mark.parametrize(
    ("template", "replays"), [case[1:] for case in STRIPPING], ids=[case[0] for case in STRIPPING]
)
def test_a_template_that_strips_content_replays_or_is_read_as_text(
    tmp_path: Path, template: str, replays: bool
) -> None:
    tokenizer = chatml_tokenizer(tmp_path, template=template)
    renderer = ChatRenderer(tokenizer)
    asked = chat_of(user("hi"))

    sequence, text = generate(renderer, tokenizer, asked, spelled_singly(tokenizer, "\nwhy</think>\nhello\n"))
    chat = chat_of(user("hi"), assistant(text), user("more"))
    following = renderer.render(ADA, chat).tokens

    if replays:
        assert following[: len(sequence)].tolist() == sequence
    else:
        assert following.tolist() == ChatRenderer(tokenizer).render(ADA, chat).tokens.tolist()


def test_a_template_that_does_not_close_an_answer_replays_nothing(tmp_path: Path) -> None:
    template = "{{ bos_token }}{% for m in messages %}[{{ m.content }}]{% endfor %}"
    tokenizer = pieces_tokenizer(tmp_path, template=template)
    renderer = ChatRenderer(tokenizer)

    prompt = renderer.render(ADA, chat_of(*ASKED))
    renderer.remember(ADA, prompt, (Text(text="hello"),), tokenizer.encode("hello").tolist())

    assert prompt.invitation is None
    following = renderer.render(ADA, chat_of(*ASKED, assistant("hello"), user("more")))
    assert following.num_replayed_tokens == 0


def test_an_answer_of_nothing_is_not_remembered(chatml: Tokenizer) -> None:
    renderer = ChatRenderer(chatml)

    generate(renderer, chatml, chat_of(*ASKED), [chatml.stop_tokens[0]])

    assert renderer.render(ADA, chat_of(*ASKED, assistant(""), user("more"))).num_replayed_tokens == 0


def test_forgotten_answers_are_read_as_text(chatml: Tokenizer) -> None:
    renderer = ChatRenderer(chatml, replay=ReplayMemo(max_bytes_per_tenant=0), segment_memo_bytes=0)
    chat = chat_of(*ASKED, assistant("hello"), user("more"))

    generate(renderer, chatml, chat_of(*ASKED), spelled_singly(chatml, "hello"))
    following = renderer.render(ADA, chat)

    assert following.num_replayed_tokens == 0
    assert following.tokens.tolist() == ChatRenderer(chatml).render(ADA, chat).tokens.tolist()


def test_memory_of_answers_is_bounded_and_apart_for_each_tenant() -> None:
    memo = ReplayMemo(max_bytes=100_000, max_bytes_per_tenant=10_000)
    answer = RememberedAnswer(header="", tokens=token_ids(np.arange(100)))
    memo.put(BOB, b"bob's", answer)

    for number in range(100):
        memo.put(ADA, b"%d" % number, answer)

    assert memo.get(BOB, b"bob's") is answer
    assert memo.get(ADA, b"99") is answer
    assert memo.get(ADA, b"0") is None
    kept = sum(memo.get(ADA, b"%d" % number) is not None for number in range(100))
    assert 5 <= kept <= 10_000 // answer.tokens.nbytes


def test_where_the_memory_of_all_answers_is_full_whoever_holds_the_most_gives_way() -> None:
    memo = ReplayMemo(max_bytes=20_000, max_bytes_per_tenant=15_000)
    answer = RememberedAnswer(header="", tokens=token_ids(np.arange(100)))
    memo.put(BOB, b"bob's", answer)

    for number in range(100):
        for tenant in range(10):
            memo.put(TenantId(f"tenant {tenant}"), b"%d" % number, answer)
            assert memo.held_bytes <= 20_000

    assert memo.get(BOB, b"bob's") is answer
    for tenant in range(10):
        assert memo.get(TenantId(f"tenant {tenant}"), b"99") is answer
