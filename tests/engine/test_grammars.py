"""Grammars over a small vocabulary: what may come next, what is refused, and when nothing is waited for."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from keepwarm.core.errors import BadRequest, InvariantBroken
from keepwarm.core.grammar import Grammar, GrammarKind, Vocabulary

pytest.importorskip("torch")
pytest.importorskip("xgrammar")

from keepwarm.engine import grammars as grammars_module
from keepwarm.engine.grammar_compiler import GrammarCompiler, TokenMatcher
from keepwarm.engine.grammars import Grammars
from tests.engine.tiny_models import VOCAB_SIZE
from tests.engine.tiny_vocabulary import CALL, STOP, VOCABULARY, tokens_of

pytestmark = pytest.mark.engine

WAIT_S = 20.0


@pytest.fixture
def grammars() -> Iterator[Grammars]:
    made = Grammars(lambda: VOCABULARY, vocab_size=VOCAB_SIZE)
    yield made
    made.close()


def schema(value: Any) -> Grammar:
    return Grammar(kind="json_schema", source=json.dumps(value), field="response_format")


def tag(form: dict[str, Any], **more: Any) -> Grammar:
    source = json.dumps({"type": "structural_tag", "format": form})
    return Grammar(kind="structural_tag", source=source, field="tool_choice", **more)


def matcher(grammar: Grammar, vocabulary: Vocabulary = VOCABULARY) -> TokenMatcher:
    compiled = GrammarCompiler(vocabulary, vocab_size=VOCAB_SIZE).compile(grammar)
    return TokenMatcher(compiled, vocab_size=VOCAB_SIZE)


def allowed(after: TokenMatcher) -> set[int]:
    mask = after.allowed()
    assert mask is not None
    assert mask.shape == (VOCAB_SIZE,)
    return set(mask.nonzero().flatten().tolist())


def accepts(grammar: Grammar, text: str) -> bool:
    """Whether the whole text is an answer."""
    place = matcher(grammar)
    for token in tokens_of(text):
        if token not in allowed(place):
            return False
        place.accept(token)
    return STOP in allowed(place)


def test_only_the_stop_token_ends_an_answer_and_only_a_complete_one() -> None:
    place = matcher(schema({"type": "boolean"}))
    for token in tokens_of("true"):
        assert STOP not in allowed(place)
        place.accept(token)
    assert allowed(place) == {STOP}
    place.accept(STOP)
    assert place.allowed() is None
    assert place.end == "complete"


def test_a_token_that_holds_several_characters_is_allowed_where_all_of_them_are() -> None:
    begin = VOCABULARY.token_bytes.index(b'{"')
    assert begin in allowed(matcher(schema({"type": "object"})))
    assert begin not in allowed(matcher(schema({"type": "object", "maxProperties": 0})))


def test_control_tokens_and_padding_are_never_allowed_in_text() -> None:
    place = matcher(tag({"type": "any_text"}))
    assert allowed(place).isdisjoint({0, CALL, *range(len(VOCABULARY.token_bytes), VOCAB_SIZE)})
    assert STOP in allowed(place)


def test_a_control_token_that_is_markup_is_text_to_the_grammar() -> None:
    form = {
        "type": "tag",
        "begin": "[CALL]",
        "content": {"type": "json_schema", "json_schema": {}},
        "end": "",
    }
    assert allowed(matcher(tag(form))) == set(tokens_of("["))
    assert CALL in allowed(matcher(tag(form, markup_tokens=(CALL,))))


def test_half_a_character_is_followed_by_its_other_half() -> None:
    place = matcher(schema({"const": "ä"}))
    for token in (*tokens_of('"'), VOCABULARY.token_bytes.index("ä".encode()[:1])):
        assert token in allowed(place)
        place.accept(token)
    assert allowed(place) == {VOCABULARY.token_bytes.index(bytes(["ä".encode()[1]]))}


@pytest.mark.parametrize(
    ("value", "right", "wrong"),
    [
        ({"enum": ["red", 1, None]}, '"red"', '"blue"'),
        ({"type": "object"}, '{"a": [1, {"b": null}]}', "[]"),
        (
            {
                "$defs": {
                    "node": {
                        "type": "object",
                        "properties": {"n": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}},
                        "required": ["n"],
                    }
                },
                "$ref": "#/$defs/node",
            },
            '{"n": 1, "next": {"n": 2}}',
            '{"n": 1, "next": 2}',
        ),
        (
            {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
            "[[1, 2], []]",
            "[1]",
        ),
        (
            {"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "integer"}},
            '{"b": 2}',
            '{"b": "2"}',
        ),
        ({"type": "object", "additionalProperties": False}, "{}", '{"a": 1}'),
        ({"type": "string", "pattern": "^[a-c]{2}$"}, '"ab"', '"abc"'),
    ],
)
def test_what_satisfies_a_schema_is_allowed_and_nothing_else(value: Any, right: str, wrong: str) -> None:
    assert accepts(schema(value), right)
    assert not accepts(schema(value), wrong)


def test_white_space_comes_in_runs_of_a_limited_length() -> None:
    assert accepts(schema({"type": "object"}), '{"a":' + " " * 8 + "1}")
    assert not accepts(schema({"type": "object"}), '{"a":' + " " * 200 + "1}")


@pytest.mark.parametrize(
    ("kind", "source", "complaint"),
    [
        ("json_schema", '{"type": "nonsense"}', "nonsense"),
        ("json_schema", '{"$ref": "#/$defs/gone"}', "gone"),
        ("json_schema", '{"type": "string", "pattern": "(["}', "Unclosed"),
        ("json_schema", "no JSON", "JSON"),
        ("regex", "([", "Unclosed"),
        ("ebnf", "root ::= gone", "gone"),
        ("structural_tag", '{"type": "structural_tag", "format": {"type": "nonsense"}}', "nonsense"),
    ],
)
def test_what_cannot_be_enforced_is_refused_and_named(kind: GrammarKind, source: str, complaint: str) -> None:
    with pytest.raises(BadRequest, match=r"^response_format: ") as refused:
        matcher(Grammar(kind=kind, source=source, field="response_format"))
    assert complaint in str(refused.value)
    assert "/project/" not in str(refused.value)


def test_a_wrong_schema_among_many_is_named_by_the_text_before_it() -> None:
    calls = [
        {
            "type": "tag",
            "begin": f'{{"name": "{name}"',
            "content": {"type": "json_schema", "json_schema": parameters},
            "end": "}",
        }
        for name, parameters in (("good", {"type": "object"}), ("bad", {"type": "nonsense"}))
    ]
    with pytest.raises(BadRequest, match=r'"name": "bad".*nonsense'):
        matcher(tag({"type": "or", "elements": calls}))


def test_a_grammar_without_any_way_on_is_stuck_and_a_complete_one_without_a_stop_token_is_complete() -> None:
    spelled = [b"" if spelling == b"e" else spelling for spelling in VOCABULARY.token_bytes[:131]]
    without_e = Vocabulary(token_bytes=spelled, control_tokens=frozenset({0, 1, 2}), stop_tokens=frozenset())
    stuck = matcher(Grammar(kind="regex", source="be"), without_e)
    stuck.accept(*tokens_of("b"))
    assert stuck.allowed() is None
    assert stuck.end == "stuck"
    done = matcher(Grammar(kind="regex", source="b"), without_e)
    done.accept(*tokens_of("b"))
    assert done.allowed() is None
    assert done.end == "complete"


def test_a_token_that_is_not_allowed_is_our_own_mistake() -> None:
    place = matcher(schema({"type": "boolean"}))
    with pytest.raises(InvariantBroken):
        place.accept(*tokens_of("x"))


def test_preparing_never_waits_and_is_done_once_a_grammar() -> None:
    loads: list[int] = []
    may_load = threading.Event()

    def load() -> Vocabulary:
        loads.append(1)
        assert may_load.wait(WAIT_S)
        return VOCABULARY

    grammars = Grammars(load, vocab_size=VOCAB_SIZE)
    first, second = schema({"type": "boolean"}), schema({"type": "null"})
    assert not grammars.prepare(first)
    assert not grammars.prepare(second)
    may_load.set()
    assert grammars.matcher(second, ()).allowed() is not None  # this one waits
    assert grammars.prepare(first)
    assert grammars.prepare(schema({"type": "null"}))
    assert loads == [1]
    grammars.close()


def test_a_refusal_is_remembered(grammars: Grammars) -> None:
    wrong = schema({"type": "nonsense"})
    with pytest.raises(BadRequest):
        grammars.matcher(wrong, ())
    with pytest.raises(BadRequest, match="nonsense"):
        grammars.prepare(wrong)


def test_a_matcher_begins_after_what_was_generated_before(grammars: Grammars) -> None:
    grammar = schema({"type": "boolean"})
    whole = grammars.matcher(grammar, tokens_of("tru"))
    assert allowed(whole) == set(tokens_of("e"))


def test_the_grammars_longest_unused_make_room(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars_module, "MAX_GRAMMARS", 2)
    kept, dropped, latest = (schema({"const": number}) for number in range(3))
    for grammar in (dropped, kept, latest):
        grammars.matcher(grammar, ())
    assert kept in grammars
    assert latest in grammars
    assert dropped not in grammars
