"""One answer: deltas, stop strings, reports, and the ids to remember it by."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keepwarm.chat.answer import AnswerDecoder
from keepwarm.chat.events import Delta, TextDelta
from keepwarm.chat.tokenizer import Tokenizer
from keepwarm.core.sampling import TokenLogprobs

quickly = settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
TEXTS = st.text(st.sampled_from("helo wxé🎈\n"), max_size=16)


def texts(deltas: Sequence[Delta]) -> list[TextDelta]:
    return [delta for delta in deltas if isinstance(delta, TextDelta)]


def text_of(deltas: Sequence[Delta]) -> str:
    assert len(texts(deltas)) == len(deltas)
    return "".join(delta.text for delta in texts(deltas))


def decode_singly(decoder: AnswerDecoder, tokens: list[int]) -> str:
    text = "".join(text_of(decoder.add([token])) for token in tokens)
    return text + text_of(decoder.flush())


@quickly
@given(drawn=st.data())
def test_the_deltas_joined_are_the_text_of_all_tokens(tokenizer: Tokenizer, drawn: st.DataObject) -> None:
    tokens = drawn.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=20))
    decoder = AnswerDecoder(tokenizer)

    sent = decode_singly(decoder, tokens)

    assert sent == decoder.text == tokenizer.decode(tokens)
    assert decoder.replay_tokens() == tokens
    assert decoder.num_tokens == len(tokens)


@quickly
@given(before=TEXTS, after=TEXTS, stop=st.sampled_from(["hel", "lo ", "STOP", "é", "🎈\n", " w"]))
def test_after_a_stop_string_what_was_sent_and_what_is_replayed_say_the_text_before_it(
    tokenizer: Tokenizer, before: str, after: str, stop: str
) -> None:
    text = before + stop + after
    decoder = AnswerDecoder(tokenizer, stop=[stop])

    sent = decode_singly(decoder, tokenizer.encode(text).tolist())

    assert decoder.stop_string == stop
    assert sent == decoder.text == text[: text.index(stop)]
    assert tokenizer.decode(decoder.replay_tokens()) == sent


def test_tokens_wholly_before_the_stop_string_are_replayed_as_sampled(chatml: Tokenizer) -> None:
    spelled = [chatml.encode(character).tolist()[0] for character in "hello"]  # not as it would be encoded
    decoder = AnswerDecoder(chatml, stop=["STOP"])
    decoder.add([*spelled, *chatml.encode("STOP").tolist()])

    assert decoder.replay_tokens() == spelled
    assert spelled != chatml.encode("hello").tolist()


def test_a_stop_string_inside_a_token_of_a_later_word_adds_no_space(pieces: Tokenizer) -> None:
    whole = pieces.encode("hello hello").tolist()
    assert len(whole) == 2
    decoder = AnswerDecoder(pieces, stop=["llo he"])

    decoder.add(whole)

    assert decoder.text == "he"
    assert pieces.decode(decoder.replay_tokens()) == "he"


@pytest.mark.parametrize(("stop", "sent"), [("lo", "hel"), ("o h", "hell"), ("hello hello", "")])
def test_the_earliest_stop_string_counts(pieces: Tokenizer, stop: str, sent: str) -> None:
    decoder = AnswerDecoder(pieces, stop=[stop])

    decoder.add(pieces.encode("hello hello").tolist())

    assert decoder.text == sent
    assert pieces.decode(decoder.replay_tokens()) == sent


def test_a_cut_inside_the_second_word_keeps_the_first_as_sampled(pieces: Tokenizer) -> None:
    first, second = pieces.encode("hello hello").tolist()
    decoder = AnswerDecoder(pieces, stop=["llo!"])

    decoder.add([first, second, *pieces.encode_inside("!").tolist()])

    assert decoder.text == "hello he"
    assert decoder.replay_tokens()[0] == first
    assert pieces.decode(decoder.replay_tokens()) == "hello he"


def test_after_a_stop_string_no_token_is_looked_at(chatml: Tokenizer) -> None:
    decoder = AnswerDecoder(chatml, stop=["!"])
    tokens = chatml.encode("hello!").tolist()

    deltas = decoder.add([*tokens, *chatml.encode(" more").tolist()])

    assert text_of(deltas) == "hello"
    assert decoder.num_tokens == len(tokens)
    assert decoder.add(tokens) == []
    assert decoder.flush() == []


def test_a_beginning_of_a_stop_string_is_sent_at_the_end(chatml: Tokenizer) -> None:
    decoder = AnswerDecoder(chatml, stop=["hello?"])

    assert text_of(decoder.add(chatml.encode("say hello").tolist())) == "say "
    assert text_of(decoder.flush()) == "hello"


def test_a_stop_string_that_a_broken_character_completes_is_found(chatml: Tokenizer) -> None:
    decoder = AnswerDecoder(chatml, stop=["\ufffd"])

    sent = decode_singly(decoder, chatml.encode("a🎈").tolist()[:-1])

    assert (sent, decoder.stop_string) == ("a", "\ufffd")


def test_reports_go_with_the_text_of_their_tokens(chatml: Tokenizer) -> None:
    tokens = chatml.encode("hello").tolist()
    decoder = AnswerDecoder(chatml, report_logprobs=True)

    reports = [TokenLogprobs(logprob=-0.5, top=((tokens[0], -0.5),))] * len(tokens)
    (delta,) = texts(decoder.add(tokens, reports))

    assert len(delta.logprobs) == len(tokens)
    assert delta.logprobs[0].chosen.logprob == -0.5
    assert delta.logprobs[0].chosen.token_bytes == chatml.token_bytes(tokens[0])
    assert delta.logprobs[0].top == (delta.logprobs[0].chosen,)


def test_reports_of_half_a_character_wait_for_its_end(chatml: Tokenizer) -> None:
    tokens = chatml.encode("🎈").tolist()
    decoder = AnswerDecoder(chatml, report_logprobs=True)
    logprobs = TokenLogprobs(logprob=-1.0)

    deltas = texts([delta for token in tokens for delta in decoder.add([token], [logprobs])])

    assert [(delta.text, len(delta.logprobs)) for delta in deltas] == [("🎈", len(tokens))]
    assert b"".join(report.chosen.token_bytes for report in deltas[0].logprobs) == "🎈".encode()


def test_reports_that_wait_at_the_end_go_out_alone(chatml: Tokenizer) -> None:
    decoder = AnswerDecoder(chatml, report_logprobs=True)
    decoder.add([chatml.stop_tokens[0]], [TokenLogprobs(logprob=-1.0)])

    (delta,) = texts(decoder.flush())

    assert (delta.text, len(delta.logprobs)) == ("", 1)


def test_no_reports_unless_asked_for(chatml: Tokenizer) -> None:
    (delta,) = texts(AnswerDecoder(chatml).add(chatml.encode("h").tolist(), [TokenLogprobs(logprob=-1.0)]))

    assert delta.logprobs == ()
