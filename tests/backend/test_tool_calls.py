"""Calls and thoughts of a real tokenizer's tokens: told as such, and read again as the same tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from keepwarm.backend.answer import Answer, OutputLimit
from keepwarm.backend.model_words import ModelTurnWords, ModelWords
from keepwarm.chat.events import ChatEvent, Finished, ReasoningDelta, TextDelta, ToolCallStart
from keepwarm.chat.messages import Chat, Message, Part, Reasoning, Text, ToolResult, ToolSpec, ToolUse
from keepwarm.chat.parsing.answer_markup import markup_of
from keepwarm.chat.render import ChatRenderer
from keepwarm.chat.request import ANY_TOOL_OR_NONE, ChatRequest, ToolChoice
from keepwarm.chat.tokenizer import Tokenizer
from keepwarm.core.ids import RequestId, TenantId
from keepwarm.core.rank_messages import Ended, EndReason, Tokens
from keepwarm.core.sampling import Sampling, TokenLogprobs
from tests.chat.families import (
    CHATML,
    CHATML_TOKENS,
    LLAMA3,
    LLAMA3_TOKENS,
    THINKING,
    byte_level,
    tokenizer_of,
)

MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
READ = ToolSpec(
    name="Read",
    description="Reads.",
    parameters={"type": "object", "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}}},
)
ASKED = Message(role="user", parts=(Text(text="What is in it?"),))
CALL = '<tool_call>\n{"name": "Read", "arguments": {"path": "a.txt", "limit": 2.0}}\n</tool_call>'
OPENING = THINKING.replace("assistant\n' }}{% endif %}", "assistant\n<think>\n' }}{% endif %}")
FAMILIES: dict[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "marks are words": (CHATML_TOKENS, (), THINKING),
    "marks are tokens": (CHATML_TOKENS, MARKS, THINKING),
    "marks are special tokens": (CHATML_TOKENS + MARKS, (), THINKING),
    "template knows no tools": (CHATML_TOKENS, (), CHATML),
    "another template without tools": (LLAMA3_TOKENS, (), LLAMA3),
}


def tokenizer_named(name: str) -> Tokenizer:
    special, plain, template = FAMILIES[name]
    eos = "<|eot_id|>" if template == LLAMA3 else "<|im_end|>"
    return tokenizer_of(
        byte_level(special, plain), template, bos=special[0] if template == LLAMA3 else "", eos=eos
    )


def words_of(tokenizer: Tokenizer, tool_format: str = "auto") -> ModelWords:
    markup = markup_of(tokenizer.chat_template or "", tool_format=tool_format)
    return ModelWords(tokenizer, ChatRenderer(tokenizer), markup)


def open_turn(
    words: ModelWords,
    *messages: Message,
    tools: tuple[ToolSpec, ...] = (READ,),
    choice: ToolChoice = ANY_TOOL_OR_NONE,
    stop: tuple[str, ...] = (),
    num_logprobs: int | None = None,
) -> ModelTurnWords:
    return words.open_turn(
        ChatRequest(
            request_id=RequestId("r"),
            tenant=TenantId("t"),
            chat=Chat(messages=messages, tools=tools),
            tool_choice=choice,
            stop=stop,
            sampling=Sampling(num_logprobs=num_logprobs),
        )
    )


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    """As a model might spell it: marks as tokens where it has them, else a character a token."""
    ids: list[int] = []
    for piece in tokenizer.control.cut(text):
        spelled = (
            [piece] if isinstance(piece, int) else [int(t) for c in piece for t in tokenizer.encode_inside(c)]
        )
        ids += spelled
    return ids


def answer(turn: ModelTurnWords, tokens: Sequence[int], reason: EndReason = "stop") -> list[ChatEvent]:
    """The whole answer, a token at a time, remembered."""
    told = Answer(
        words=turn, limit=OutputLimit.within(999, asked_tokens=99), received_at_s=0.0, clock=lambda: 0.0
    )
    events = [
        event for token in tokens for event in told.take([Tokens(request_id=RequestId("r"), tokens=(token,))])
    ]
    events += told.take([Ended(request_id=RequestId("r"), reason=reason)])
    told.remember()
    return events


def text_of(events: Sequence[ChatEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def reason_of(events: Sequence[ChatEvent]) -> str:
    (finished,) = (event for event in events if isinstance(event, Finished))
    return finished.reason


def result(call_id: str) -> Message:
    return Message(role="user", parts=(ToolResult(tool_use_id=call_id, parts=(Text(text="x"),)),))


def use(arguments: dict[str, Any], call_id: str = "toolu_9") -> ToolUse:
    return ToolUse(id=call_id, name="Read", arguments=arguments)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_call_is_told_and_ends_the_answer_with_its_own_reason(name: str) -> None:
    tokenizer = tokenizer_named(name)
    turn = open_turn(words_of(tokenizer), ASKED)

    events = answer(turn, ids_of(tokenizer, f"<think>\nHm.\n</think>\n\nI look.\n{CALL}"))

    assert [event.name for event in events if isinstance(event, ToolCallStart)] == ["Read"]
    assert "".join(event.text for event in events if isinstance(event, ReasoningDelta)) == "Hm."
    assert text_of(events) == "I look."
    assert reason_of(events) == "tool_use"
    assert turn.num_malformed == 0


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(
    "sent",
    [
        (Reasoning(text="Hm."), Text(text="I look."), use({"path": "a.txt", "limit": 2.0})),
        (Text(text="I look.\n"), use({"limit": 2, "path": "a.txt"}, call_id="renamed")),
        (Text(text="\n I look."), use({"limit": 2, "path": "a.txt"})),
    ],
)
def test_the_next_prompt_begins_with_every_token_of_the_call_and_the_thought(
    name: str, sent: tuple[Part, ...]
) -> None:
    tokenizer = tokenizer_named(name)
    words = words_of(tokenizer)
    turn = open_turn(words, ASKED)
    tokens = ids_of(tokenizer, f"<think>\nHm.\n</think>\n\nI look.\n{CALL}")
    answer(turn, tokens)
    call_id = next(part.id for part in sent if isinstance(part, ToolUse))

    later = open_turn(words, ASKED, Message(role="assistant", parts=sent), result(call_id))

    so_far = [*turn.prompt.tolist(), *tokens]
    assert later.prompt.tolist()[: len(so_far)] == so_far


def test_calls_beside_each_other_are_replayed_together() -> None:
    tokenizer = tokenizer_named("marks are tokens")
    words = words_of(tokenizer)
    turn = open_turn(words, ASKED)
    tokens = ids_of(tokenizer, f"{CALL}\n{CALL}\n")
    answer(turn, tokens)
    both = (use({"limit": 2, "path": "a.txt"}, "a"), use({"limit": 2, "path": "a.txt"}, "b"))

    later = open_turn(words, ASKED, Message(role="assistant", parts=both), result("a"), result("b"))

    so_far = [*turn.prompt.tolist(), *tokens]
    assert later.prompt.tolist()[: len(so_far)] == so_far


def test_a_call_that_the_limit_cut_is_closed_and_replayed_as_it_was_cut() -> None:
    tokenizer = tokenizer_named("marks are tokens")
    words = words_of(tokenizer)
    turn = open_turn(words, ASKED)
    tokens = ids_of(tokenizer, CALL[: CALL.index(".txt")])

    events = answer(turn, tokens, "length")
    later = open_turn(words, ASKED, Message(role="assistant", parts=(use({"path": "a"}),)), result("toolu_9"))

    assert reason_of(events) == "max_tokens"
    assert turn.num_malformed == 1
    so_far = [*turn.prompt.tolist(), *tokens]
    assert later.prompt.tolist()[: len(so_far)] == so_far


@pytest.mark.parametrize("name", ["marks are words", "marks are tokens"])
@pytest.mark.parametrize(
    ("tools", "choice", "tool_format"),
    [
        ((), ANY_TOOL_OR_NONE, "auto"),
        ((READ,), ToolChoice(mode="none"), "auto"),
        ((READ,), ANY_TOOL_OR_NONE, "none"),
    ],
)
def test_markup_is_text_where_no_call_can_be_meant_and_thoughts_are_thoughts(
    name: str, tools: tuple[ToolSpec, ...], choice: ToolChoice, tool_format: str
) -> None:
    tokenizer = tokenizer_named(name)
    turn = open_turn(words_of(tokenizer, tool_format), ASKED, tools=tools, choice=choice)

    events = answer(turn, ids_of(tokenizer, f"<think>Hm.</think>\n{CALL}"))

    assert text_of(events) == CALL
    assert any(isinstance(event, ReasoningDelta) for event in events)
    assert reason_of(events) == "end"


def test_an_answer_to_a_prompt_that_opens_a_thought_begins_inside_it() -> None:
    tokenizer = tokenizer_of(byte_level(CHATML_TOKENS, MARKS), OPENING, eos="<|im_end|>")
    words = words_of(tokenizer)
    turn = open_turn(words, ASKED)
    tokens = ids_of(tokenizer, f"Hm.\n</think>\n\nYes.\n{CALL}")

    events = answer(turn, tokens)
    sent = (Text(text="Yes."), use({"path": "a.txt", "limit": 2}))
    later = open_turn(words, ASKED, Message(role="assistant", parts=sent), result("toolu_9"))

    assert [event.text for event in events if isinstance(event, ReasoningDelta)] == list("Hm.")
    assert text_of(events) == "Yes."
    so_far = [*turn.prompt.tolist(), *tokens]
    assert later.prompt.tolist()[: len(so_far)] == so_far


def test_stop_strings_are_looked_for_in_text_alone() -> None:
    tokenizer = tokenizer_named("marks are tokens")
    words = words_of(tokenizer)
    turn = open_turn(words, ASKED, stop=("a.", "Hm"))
    kept, cut = ids_of(tokenizer, f"<think>a. Hm</think>\n{CALL}\nNow "), ids_of(tokenizer, "a. b")

    events = answer(turn, [*kept, *cut])

    assert text_of(events) == "Now "
    assert turn.stop_string == "a."
    assert turn.num_output_tokens == len(kept) + 2
    sent = (use({"path": "a.txt", "limit": 2}), Text(text="Now"))
    later = open_turn(words, ASKED, Message(role="assistant", parts=sent), result("toolu_9"))
    so_far = [*turn.prompt.tolist(), *kept]
    assert later.prompt.tolist()[: len(so_far)] == so_far


def test_reports_go_with_the_text_and_not_with_thoughts_or_calls() -> None:
    tokenizer = tokenizer_named("marks are tokens")
    turn = open_turn(words_of(tokenizer), ASKED, num_logprobs=0)
    deltas = [
        delta
        for token in ids_of(tokenizer, f"<think>Hm</think>Yes, {CALL}")
        for delta in turn.add([token], [TokenLogprobs(logprob=-1.0)])
    ]

    reports = [report for delta in deltas if isinstance(delta, TextDelta) for report in delta.logprobs]

    assert b"".join(report.chosen.token_bytes for report in reports) == b"Yes,"
