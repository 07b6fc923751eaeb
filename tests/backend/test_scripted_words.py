from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from keepwarm.backend.scripted_words import ByteTurnWords, ByteWords
from keepwarm.chat.events import Delta, TextDelta
from keepwarm.core.ids import token_ids
from keepwarm.core.sampling import TokenLogprobs
from tests.contract.fake_backend import chat_request


def texts(deltas: Sequence[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))


@given(st.binary(max_size=30), st.lists(st.sampled_from(["a", "ab", "\n\n", "é", "\ufffd"]), max_size=2))
def test_one_token_at_a_time_says_the_same_as_all_at_once(raw: bytes, stops: list[str]) -> None:
    at_once, one_by_one = (ByteTurnWords(token_ids([]), stops, with_logprobs=False) for _ in range(2))
    whole = texts(at_once.add(tuple(raw), ())) + texts(at_once.finish())
    parts = "".join(texts(one_by_one.add((token,), ())) for token in raw) + texts(one_by_one.finish())
    assert whole == parts
    assert at_once.stop_string == one_by_one.stop_string
    if at_once.stop_string is None:
        assert whole == raw.decode(errors="replace")


def test_logprobs_go_with_the_text_of_their_tokens() -> None:
    words = ByteTurnWords(token_ids([]), (), with_logprobs=True)
    (delta,) = words.add(tuple("é".encode()), (TokenLogprobs(logprob=-1.0), TokenLogprobs(logprob=-2.0)))
    assert isinstance(delta, TextDelta)
    assert [report.chosen.logprob for report in delta.logprobs] == [-1.0, -2.0]


def test_counting_equals_the_prompt() -> None:
    request = chat_request()
    prompt = ByteWords().open_turn(request).prompt
    assert ByteWords().count_tokens(request.tenant, request.chat) == len(prompt)
