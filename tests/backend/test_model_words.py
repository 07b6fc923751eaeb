"""A real tokenizer and template behind the front."""

from __future__ import annotations

import logging
import re
from datetime import datetime
from pathlib import Path

import pytest

from keepwarm.backend.model_words import load_model_words
from keepwarm.chat.events import TextDelta
from keepwarm.chat.messages import Chat, Message, Text
from keepwarm.chat.request import ChatRequest
from keepwarm.core.ids import RequestId, TenantId
from tests.chat.lint_templates import DROPS_ALWAYS
from tests.chat.tiny_tokenizers import CHATML, byte_level_backend, write_folder

TENANT = TenantId("t")


def ask(*texts: str, stop: tuple[str, ...] = ()) -> ChatRequest:
    """A conversation whose messages are the user's and the assistant's in turn."""
    messages = tuple(
        Message(role="assistant" if number % 2 else "user", parts=(Text(text=text),))
        for number, text in enumerate(texts)
    )
    chat = Chat(messages=messages)
    return ChatRequest(request_id=RequestId("r"), tenant=TENANT, chat=chat, stop=stop)


def folder(tmp_path: Path, template: str = CHATML) -> str:
    return str(write_folder(tmp_path, byte_level_backend(), chat_template=template, eos_token="<|im_end|>"))


def test_the_next_prompt_begins_with_this_one_and_its_answer(tmp_path: Path) -> None:
    words = load_model_words(folder(tmp_path))
    turn = words.open_turn(ask("hello"))
    backend = byte_level_backend()
    answer = [backend.encode(letter).ids[0] for letter in "quick"]  # not how the tokenizer spells it
    deltas = [*turn.add(answer, ()), *turn.finish()]
    turn.remember()
    text = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
    later = words.open_turn(ask("hello", text, "and then?"))
    so_far = [*turn.prompt.tolist(), *answer]
    assert later.prompt.tolist()[: len(so_far)] == so_far


def test_counting_equals_the_prompt(tmp_path: Path) -> None:
    words = load_model_words(folder(tmp_path))
    request = ask("hello")
    assert words.count_tokens(TENANT, request.chat) == len(words.open_turn(request).prompt)


def test_a_template_that_shows_the_date_can_be_served(tmp_path: Path) -> None:
    words = load_model_words(folder(tmp_path, "{{ strftime_now('%Y') }} " + CHATML))
    one, other = words.open_turn(ask("hello")), words.open_turn(ask("hello"))
    assert one.prompt.tolist() == other.prompt.tolist()


def test_a_start_that_is_given_a_date_shows_that_one(tmp_path: Path) -> None:
    """A front that is started again the day after finds the prefixes of the day before."""
    model = folder(tmp_path, "{{ strftime_now('%d %b %Y') }} " + CHATML)
    first = load_model_words(model, now=datetime(2026, 1, 31, 23, 59))
    again = load_model_words(model, now=datetime(2026, 1, 31, 12, 0))
    other = load_model_words(model, now=datetime(2026, 2, 1))
    prompts = [words.open_turn(ask("hello")).prompt.tolist() for words in (first, again, other)]
    assert prompts[0] == prompts[1] != prompts[2]


def test_a_template_that_costs_is_warned_of_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = folder(tmp_path / "thinker", DROPS_ALWAYS)

    load_model_words(model)

    (warning,) = (record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    assert re.match(
        r"the chat template of thinker costs about \d+ tokens a turn \(thoughts-dropped-alw", warning
    )
    assert warning.endswith(f"See it all: keepwarm doctor --template {model}")


def test_a_template_that_only_appends_is_not_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    load_model_words(folder(tmp_path))

    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_stop_string_is_told_with_its_place(tmp_path: Path) -> None:
    words = load_model_words(folder(tmp_path))
    turn = words.open_turn(ask("hello", stop=("fox",)))
    deltas = turn.add(byte_level_backend().encode("the quick brown fox says").ids, ())
    assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == "the quick brown "
    assert turn.stop_string == "fox"
    assert turn.num_output_tokens >= 1
