from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepwarm.chat.answer import AnswerDecoder
from keepwarm.chat.events import TextDelta
from keepwarm.core.errors import BadRequest
from keepwarm.core.sampling import TokenLogprobs
from tests.chat.tiny import byte_level, tokenizer_of

_TOKENIZER = tokenizer_of(byte_level())


def _ids(text: str) -> list[int]:
    ids: list[int] = _TOKENIZER.encode(text).tolist()
    return ids


def _letters(text: str) -> list[int]:
    """One token a byte: never how the tokenizer would cut it."""
    return [token for letter in text for byte in letter.encode() for token in _byte(byte)]


def _byte(byte: int) -> list[int]:
    return [token for token in range(3, 259) if _TOKENIZER.token_bytes(token) == bytes([byte])]


def _text(deltas: list[TextDelta]) -> str:
    return "".join(delta.text for delta in deltas)


def test_tokens_become_deltas_of_whole_characters() -> None:
    decoder = AnswerDecoder(_TOKENIZER)
    tokens = _letters("a🙂")
    assert [_text(decoder.add([token])) for token in tokens] == ["a", "", "", "", "🙂"]
    assert decoder.flush() == []
    assert decoder.text == "a🙂"


def test_a_stop_string_across_tokens_ends_the_text_and_says_where_to_cut() -> None:
    decoder = AnswerDecoder(_TOKENIZER, stop=["STOP"])
    deltas = decoder.add(_letters("say STOP and more"))
    assert _text(deltas) == "say "
    assert decoder.stop_string == "STOP"
    assert decoder.num_tokens == len("say STOP")
    assert decoder.add(_letters("x")) == []
    assert decoder.flush() == []
    assert decoder.num_tokens == len("say STOP")


def test_what_might_begin_a_stop_string_comes_out_at_the_end() -> None:
    decoder = AnswerDecoder(_TOKENIZER, stop=["STOP"])
    assert _text(decoder.add(_letters("a ST"))) == "a "
    assert _text(decoder.flush()) == "ST"
    assert decoder.stop_string is None


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(BadRequest):
        AnswerDecoder(_TOKENIZER, stop=[""])


@given(
    text=st.text(alphabet="ab é🙂S", max_size=20),
    stop=st.lists(st.text(alphabet="ab é🙂S", min_size=1, max_size=3), max_size=2),
    seed=st.integers(0, 1000),
    broken=st.booleans(),
)
def test_replayed_ids_decode_to_exactly_what_was_sent(
    text: str, stop: list[str], seed: int, broken: bool
) -> None:
    rng = random.Random(seed)
    tokens = _ids(text) if rng.random() < 0.5 else _letters(text)
    if broken:
        tokens = tokens[: rng.randint(0, len(tokens))]
    decoder = AnswerDecoder(_TOKENIZER, stop=stop)
    sent, at = "", 0
    while at < len(tokens):
        size = rng.randint(1, 3)
        sent += _text(decoder.add(tokens[at : at + size]))
        at += size
    unfinished = decoder.replay_tokens()
    assert _TOKENIZER.decode(unfinished) == sent == decoder.text
    sent += _text(decoder.flush())
    assert _TOKENIZER.decode(decoder.replay_tokens()) == sent == decoder.text
    if decoder.stop_string is None:
        assert decoder.replay_tokens() == tokens


def test_reports_travel_with_the_text_of_their_tokens_and_none_is_lost() -> None:
    decoder = AnswerDecoder(_TOKENIZER, report_logprobs=True)
    tokens = _letters("a🙂")
    deltas: list[TextDelta] = []
    for token in tokens:
        deltas += decoder.add([token], [TokenLogprobs(logprob=-0.5, top=((token, -0.5), (99, -2.0)))])
    deltas += decoder.flush()
    assert [(delta.text, len(delta.logprobs)) for delta in deltas] == [("a", 1), ("🙂", 4)]
    reports = [report for delta in deltas for report in delta.logprobs]
    assert b"".join(report.chosen.token_bytes for report in reports) == "a🙂".encode()
    assert reports[0].chosen.token == "a"
    assert [top.logprob for top in reports[0].top] == [-0.5, -2.0]


def test_reports_without_text_come_out_at_the_end() -> None:
    decoder = AnswerDecoder(_TOKENIZER, stop=["ab"], report_logprobs=True)
    assert decoder.add(_letters("ab"), [TokenLogprobs(logprob=-1.0)] * 2) == [
        TextDelta(text="", logprobs=decoder_reports(2))
    ]


def decoder_reports(count: int) -> tuple:  # type: ignore[type-arg]
    decoder = AnswerDecoder(_TOKENIZER, report_logprobs=True)
    return decoder.add(_letters("ab")[:count], [TokenLogprobs(logprob=-1.0)] * count)[0].logprobs
