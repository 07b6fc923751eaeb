"""What holds of every family's answers: cut anywhere, ended anywhere, broken in every way we know."""

from __future__ import annotations

import pytest

from tests.chat.parsing.corpora import CORPORA, Corpus
from tests.chat.parsing.reading import Read, calls_of, read_every_split, read_pieces, text_of


def cases(*kinds: str) -> list[object]:
    return [
        pytest.param(corpus, text, read, id=f"{name}-{kind}-{number}")
        for name, corpus in CORPORA.items()
        for kind in kinds
        for number, (text, read) in enumerate(getattr(corpus, kind).items())
    ]


def texts(kind: str) -> list[object]:
    return [
        pytest.param(corpus, text, id=f"{name}-{number}")
        for name, corpus in CORPORA.items()
        for number, text in enumerate(getattr(corpus, kind))
    ]


@pytest.mark.parametrize(("corpus", "text", "read"), cases("well_formed", "sloppy", "broken"))
def test_an_answer_says_the_same_however_it_is_cut(corpus: Corpus, text: str, read: Read) -> None:
    assert read_every_split(corpus.markup, text) == read


@pytest.mark.parametrize(("corpus", "text"), texts("unreadable"))
def test_markup_that_is_no_call_is_text_as_written_and_counted(corpus: Corpus, text: str) -> None:
    read = read_every_split(corpus.markup, text)

    assert (text_of(read), calls_of(read)) == (text, [])
    assert read.num_malformed >= 1, "the opening mark; a closing one after it counts too"


@pytest.mark.parametrize(("corpus", "text"), texts("plain"))
def test_what_only_resembles_markup_is_text_to_the_last_byte(corpus: Corpus, text: str) -> None:
    read = read_every_split(corpus.markup, text)

    assert (text_of(read), calls_of(read), read.num_malformed) == (text, [], 0)


@pytest.mark.parametrize(("corpus", "text", "read"), cases("well_formed", "sloppy", "broken"))
def test_an_answer_that_ends_anywhere_makes_no_call_that_the_whole_does_not(
    corpus: Corpus, text: str, read: Read
) -> None:
    names = [call.name for call in calls_of(read)]

    for end in range(len(text)):
        cut = read_pieces(corpus.markup, [text[:end]])
        assert [call.name for call in calls_of(cut)] == names[: len(calls_of(cut))], text[:end]
        assert cut == read_pieces(corpus.markup, text[:end])
