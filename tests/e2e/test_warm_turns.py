"""The main job: a conversation's later turns read only what is new, and say the same as cold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anthropic
import openai
import pytest

from tests.e2e.served import Served

pytestmark = pytest.mark.engine
BLOCK = 16
RULES = "You are a careful assistant. " + " ".join(
    f"Rule {n}: keep file number {n} short and tidy." for n in range(24)
)
GREEDY = {"temperature": 0}  # the SDK has no argument for it any more
BYPASS = {"x-keepwarm-cache": "bypass"}


def anthropic_client(served: Served) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=served.url, api_key=served.key, max_retries=0)


def openai_client(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key=served.key, max_retries=0)


def ask(
    served: Served, messages: Sequence[Any], *, max_tokens: int = 16, **options: Any
) -> anthropic.types.Message:
    with anthropic_client(served) as client:
        answer: anthropic.types.Message = client.messages.create(
            model=served.model,
            max_tokens=max_tokens,
            system=RULES,
            messages=list(messages),
            extra_body=GREEDY,
            **options,
        )
        return answer


def text_of(message: anthropic.types.Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def prompt_tokens(message: anthropic.types.Message) -> int:
    return message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)


def test_each_later_turn_of_a_conversation_hits_its_whole_past(served: Served) -> None:
    messages: list[dict[str, str]] = [{"role": "user", "content": "List the files, please."}]
    first = ask(served, messages)
    past = prompt_tokens(first) + first.usage.output_tokens
    for turn in range(3):
        messages += [
            {"role": "assistant", "content": text_of(first)},
            {"role": "user", "content": f"And file {turn}?"},
        ]
        later = ask(served, messages)
        assert later.usage.cache_read_input_tokens is not None
        assert later.usage.cache_read_input_tokens >= past // BLOCK * BLOCK - BLOCK
        past, first = prompt_tokens(later) + later.usage.output_tokens, later


def test_a_cached_answer_equals_the_cold_one(served: Served) -> None:
    messages = [{"role": "user", "content": "What does rule 7 say? Answer in one sentence."}]
    filled = ask(served, messages)
    warm = ask(served, messages)
    cold = ask(served, messages, extra_headers=BYPASS)
    assert warm.usage.cache_read_input_tokens
    assert cold.usage.cache_read_input_tokens == 0
    assert text_of(filled) == text_of(warm) == text_of(cold)


def test_usage_counts_every_prompt_token_once(served: Served) -> None:
    messages: list[Any] = [{"role": "user", "content": "Count me, please."}]
    with anthropic_client(served) as client:
        counted = client.messages.count_tokens(model=served.model, system=RULES, messages=messages)
    for _ in range(2):
        answer = ask(served, messages)
        assert prompt_tokens(answer) == counted.input_tokens
        assert answer.usage.cache_creation_input_tokens == 0


def test_the_anthropic_sdk_streams(served: Served) -> None:
    messages: list[Any] = [{"role": "user", "content": "Say something about rule 3."}]
    whole = ask(served, messages)
    with (
        anthropic_client(served) as client,
        client.messages.stream(
            model=served.model, max_tokens=16, system=RULES, messages=messages, extra_body=GREEDY
        ) as stream,
    ):
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    assert "".join(pieces) == text_of(final) == text_of(whole)
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert final.usage.cache_read_input_tokens
    assert final.stop_reason == whole.stop_reason


def test_the_openai_sdk_streams_and_reports_cached_tokens(served: Served) -> None:
    messages: list[Any] = [
        {"role": "system", "content": RULES},
        {"role": "user", "content": "Say something about rule 4."},
    ]
    with openai_client(served) as client:
        whole = client.chat.completions.create(
            model="default", messages=messages, max_tokens=16, temperature=0
        )
        chunks = list(
            client.chat.completions.create(
                model="default",
                messages=messages,
                max_tokens=16,
                temperature=0,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens
    assert usage.prompt_tokens == whole.usage.prompt_tokens if whole.usage else False


def test_both_dialects_share_one_cache(served: Served) -> None:
    question = "A question that both dialects ask in the same words."
    first = ask(served, [{"role": "user", "content": question}])
    with openai_client(served) as client:
        second = client.chat.completions.create(
            model=served.model,
            messages=[{"role": "system", "content": RULES}, {"role": "user", "content": question}],
            max_tokens=16,
            temperature=0,
        )
    assert second.usage is not None
    assert second.usage.prompt_tokens == prompt_tokens(first)
    assert second.usage.prompt_tokens_details is not None
    assert (second.usage.prompt_tokens_details.cached_tokens or 0) >= prompt_tokens(first) - 2 * BLOCK
    assert second.choices[0].message.content == text_of(first)


def test_logprobs_and_seeds_reach_the_engine(served: Served) -> None:
    messages: list[Any] = [{"role": "user", "content": "Name a colour."}]

    def draw(seed: int) -> Any:
        with openai_client(served) as client:
            return client.chat.completions.create(
                model="default",
                messages=messages,
                max_tokens=12,
                temperature=1.5,
                seed=seed,
                logprobs=True,
                top_logprobs=3,
            ).choices[0]

    one, again, other = draw(1), draw(1), draw(2)
    assert one.message.content == again.message.content
    assert one.message.content != other.message.content
    assert len(one.logprobs.content[0].top_logprobs) == 3
    assert "".join(entry.token for entry in one.logprobs.content).startswith(one.message.content[:5])


def test_a_stop_string_cuts_the_answer(served: Served) -> None:
    messages = [{"role": "user", "content": "Count from one to ten."}]
    text = text_of(ask(served, messages))
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    answer = ask(served, messages, stop_sequences=[stop])
    assert answer.stop_reason == "stop_sequence"
    assert answer.stop_sequence == stop
    assert text_of(answer) == text[: text.index(stop)]
