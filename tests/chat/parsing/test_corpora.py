"""What holds of every family's answers: cut anywhere, ended anywhere, broken in every way we know."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepwarm.chat.events import ToolCallArguments, ToolCallEnd
from keepwarm.chat.parsing.parser import ParsingContext
from tests.chat.parsing.corpora import CORPORA, Corpus
from tests.chat.parsing.reading import TOOLS, Read, calls_of, read_every_split, read_pieces, text_of


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


def fragments(corpus: Corpus) -> list[str]:
    """Pieces of this family's markup, and of what stands between."""
    whole = "".join([*corpus.well_formed, *corpus.sloppy, *corpus.broken])
    pieces = re.split(r"(<[^<>\n]{1,40}>|\[/?[A-Z_]+\]|[\[\]{}()'\",:=\n]|call:)", whole)
    return sorted({piece for piece in pieces if 0 < len(piece) <= 60})


NO_CALL_BUT_MARKUP = ("[THINK]", "<|channel>thought", "<|message|>")


@pytest.mark.parametrize("name", CORPORA)
@settings(deadline=None, max_examples=150)
@given(drawn=st.data())
def test_any_heap_of_markup_is_read_to_its_end_and_the_same_however_it_is_cut(
    name: str, drawn: st.DataObject
) -> None:
    markup, known = CORPORA[name].markup, fragments(CORPORA[name])
    pieces = drawn.draw(st.lists(st.sampled_from(known), max_size=25))
    text = "".join(pieces)

    read = read_pieces(markup, pieces)

    assert read == read_pieces(markup, text) == read_pieces(markup, [text])
    if not calls_of(read) and not any(mark in text for mark in NO_CALL_BUT_MARKUP):
        assert text_of(read) == text, "what is no call is lost"


STREAMED = {
    "deepseek-v3": ('<｜tool▁call▁begin｜>Bash<｜tool▁sep｜>{"command": "', '"}<｜tool▁call▁end｜>'),
    "dsml": (
        '<｜DSML｜invoke name="Bash"><｜DSML｜parameter name="command" string="true">',
        "</｜DSML｜parameter></｜DSML｜invoke>",
    ),
    "mistral": ('[TOOL_CALLS]Bash[ARGS]{"command": "', '"}'),
    "glm": ("<tool_call>Bash\n<arg_key>command</arg_key>\n<arg_value>", "</arg_value>\n</tool_call>"),
    "function-gemma": ("<start_function_call>call:Bash{command:<escape>", "<escape>}<end_function_call>"),
    "gemma3": ("```tool_code\nBash(command='", "')\n```"),
    "gemma4": ('<|tool_call>call:Bash{command:<|"|>', '<|"|>}<tool_call|>'),
    "harmony": ('<|channel|>commentary to=functions.Bash<|message|>{"command": "', '"}<|call|>'),
}


@pytest.mark.parametrize("name", STREAMED)
def test_a_string_goes_out_as_it_comes(name: str) -> None:
    before, after = STREAMED[name]
    parser = CORPORA[name].markup.parser(ParsingContext(tools=TOOLS, new_call_id=lambda: "id"))
    parser.feed(before + "a ")

    deltas = [parser.feed(f"word{number} ") for number in range(3)]
    rest = [*parser.feed(after), *parser.finish()]

    assert deltas == [[ToolCallArguments(json=f"word{number} ")] for number in range(3)]
    assert ToolCallEnd() in rest
