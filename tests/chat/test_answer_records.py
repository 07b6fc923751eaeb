"""An answer that is kept outside comes back as it was, or not at all."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepwarm.chat.answer_records import AnswerRecords
from keepwarm.chat.render import ChatRenderer
from keepwarm.chat.replay import RememberedAnswer, ReplayMemo
from keepwarm.chat.tokenizer import Tokenizer
from keepwarm.core.ids import TenantId, token_ids
from tests.chat.conversations import assistant, chat_of, user
from tests.chat.test_replay import ADA, ASKED, BOB, generate, spelled_singly

RECORDS = AnswerRecords(b"model")
ANSWER = RememberedAnswer(header="\n", tokens=token_ids([3, 1, 2]), has_reasoning=True)

texts = st.text(st.characters(exclude_categories=["Cs"]))


@given(
    tenant=texts,
    key=st.binary(),
    header=texts,
    tokens=st.lists(st.integers(0, 2**31 - 1)),
    has_reasoning=st.booleans(),
)
def test_an_answer_comes_back_as_it_was(
    tenant: str, key: bytes, header: str, tokens: list[int], has_reasoning: bool
) -> None:
    answer = RememberedAnswer(header=header, tokens=token_ids(tokens), has_reasoning=has_reasoning)
    _name, record = RECORDS.encode(TenantId(tenant), key, answer)
    back = RECORDS.decode(record)
    assert back is not None
    assert back[:2] == (tenant, key)
    assert (back[2].header, back[2].has_reasoning) == (header, has_reasoning)
    assert back[2].tokens.tolist() == tokens
    assert back[2].tokens.dtype == np.int32


def test_the_same_place_has_the_same_name_and_every_other_another() -> None:
    places = [(RECORDS, ADA, b"k"), (RECORDS, ADA, b"l"), (RECORDS, BOB, b"k")]
    places += [(AnswerRecords(b"other"), ADA, b"k"), (RECORDS, TenantId("ad"), b"ak")]
    names = [records.encode(tenant, key, ANSWER)[0] for records, tenant, key in places]
    assert len(set(names)) == len(places)
    assert RECORDS.encode(ADA, b"k", ANSWER)[0] == names[0]


def test_a_record_of_another_model_is_no_answer() -> None:
    assert AnswerRecords(b"other").decode(RECORDS.encode(ADA, b"k", ANSWER)[1]) is None


def test_a_record_of_another_form_is_no_answer() -> None:
    fields = msgspec.msgpack.decode(RECORDS.encode(ADA, b"k", ANSWER)[1])
    for changed in ([2, *fields[1:]], fields[:3], [*fields[:5], b"123", fields[6]]):
        assert RECORDS.decode(msgspec.msgpack.encode(changed)) is None


@given(raw=st.binary())
def test_anything_else_is_no_answer(raw: bytes) -> None:
    assert RECORDS.decode(raw) is None


@given(drawn=st.data())
def test_a_damaged_record_never_raises(drawn: st.DataObject) -> None:
    raw = bytearray(RECORDS.encode(ADA, b"k", ANSWER)[1])
    raw[drawn.draw(st.integers(0, len(raw) - 1))] = drawn.draw(st.integers(0, 255))
    RECORDS.decode(bytes(raw))


def test_only_new_answers_are_told_and_all_can_be_asked_for() -> None:
    told: list[tuple[TenantId, bytes]] = []
    memo = ReplayMemo(on_new=lambda tenant, key, _answer: told.append((tenant, key)))
    memo.restore(BOB, b"old", ANSWER)
    memo.put(ADA, b"new", ANSWER)
    assert told == [(ADA, b"new")]
    assert [(tenant, key) for tenant, key, _ in memo.all()] == [(BOB, b"old"), (ADA, b"new")]


@pytest.mark.parametrize("tenant", [ADA, BOB])
def test_another_process_replays_what_it_is_given_back(chatml: Tokenizer, tenant: TenantId) -> None:
    """Its text would be tokenised otherwise; another tenant's answer says nothing."""
    kept: list[bytes] = []
    first = ReplayMemo(on_new=lambda *answer: kept.append(RECORDS.encode(*answer)[1]))
    tokens = spelled_singly(chatml, "hello the")
    sequence, text = generate(ChatRenderer(chatml, replay=first), chatml, chat_of(*ASKED), tokens, ADA)

    second = ReplayMemo()
    for record in kept:
        answer = RECORDS.decode(record)
        assert answer is not None
        second.restore(*answer)
    following = ChatRenderer(chatml, replay=second).render(
        tenant, chat_of(*ASKED, assistant(text), user("more"))
    )

    assert (following.tokens[: len(sequence)].tolist() == sequence) is (tenant == ADA)
    assert following.num_replayed_tokens == (len(tokens) if tenant == ADA else 0)
