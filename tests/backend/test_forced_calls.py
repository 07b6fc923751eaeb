"""Whatever a form lets through is read back as what was forced: random tokens, every tool format."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keepwarm.backend.vocabulary import vocabulary_of
from keepwarm.chat.events import ReasoningDelta, TextDelta, ToolCallArguments, ToolCallStart
from keepwarm.chat.forced_form import ForcedForms
from keepwarm.chat.messages import Chat, ToolSpec
from keepwarm.chat.parsing.answer_markup import AnswerMarkup, markup_of
from keepwarm.chat.parsing.registry import TOOL_FORMATS
from keepwarm.chat.request import ChatRequest, ToolChoice
from keepwarm.core.grammar import Grammar, Vocabulary
from keepwarm.core.ids import RequestId, TenantId
from tests.chat.tiny_tokenizers import chatml_tokenizer, pieces_tokenizer

pytest.importorskip("torch")
pytest.importorskip("xgrammar")

from keepwarm.engine.grammar_compiler import GrammarCompiler, TokenMatcher

pytestmark = pytest.mark.engine

WEATHER = ToolSpec(
    name="get_weather",
    description="",
    parameters={
        "type": "object",
        "properties": {
            "place": {"$ref": "#/$defs/place"},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
            "units": {"type": "array", "items": {"enum": ["°C", "°F"]}, "maxItems": 3},
            "sure": {"type": "boolean"},
        },
        "required": ["place", "days"],
        "$defs": {
            "place": {
                "type": "object",
                "properties": {"x": {"type": ["integer", "null"], "minimum": 0, "maximum": 99}},
                "required": ["x"],
                "additionalProperties": False,
            }
        },
    },
)
READ = ToolSpec(
    name="read",
    description="",
    parameters={
        "type": "object",
        "properties": {"path": {"enum": ["größe.txt", "a b", "c"]}},
        "required": ["path"],
    },
)
TOOLS = (WEATHER, READ)
MAX_TOKENS = 4000


def check(name: str, arguments: Any) -> None:
    if name == "read":
        assert set(arguments) == {"path"}
        assert arguments["path"].strip() in ("größe.txt", "a b", "c")
        return
    assert name == "get_weather"
    assert {"place", "days"} <= set(arguments) <= {"place", "days", "units", "sure"}
    assert arguments["days"] in range(1, 10)
    assert list(arguments["place"]) == ["x"]
    assert arguments["place"]["x"] is None or arguments["place"]["x"] in range(100)
    assert set(arguments.get("units", [])) <= {"°C", "°F"}
    assert arguments.get("sure", True) in (True, False)


@pytest.fixture(scope="module", params=["byte level", "pieces"])
def vocabulary(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    make = chatml_tokenizer if request.param == "byte level" else pieces_tokenizer
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    return vocabulary_of(make(folder))


def wander(grammar: Grammar, vocabulary: Vocabulary, seed: int) -> str:
    """The text of random tokens that the grammar allows, up to its end; likely to end where it may."""
    size = len(vocabulary.token_bytes)
    matcher = TokenMatcher(GrammarCompiler(vocabulary, vocab_size=size).compile(grammar), vocab_size=size)
    chosen, said = random.Random(seed), b""
    for _ in range(MAX_TOKENS):
        allowed = matcher.allowed()
        assert allowed is not None
        tokens = allowed.nonzero().flatten().tolist()
        ends = [token for token in tokens if token in vocabulary.stop_tokens]
        token = chosen.choice(ends if ends and chosen.random() < 0.5 else tokens)
        if token in vocabulary.stop_tokens:
            return said.decode()
        matcher.accept(token)
        said += vocabulary.token_bytes[token]
    raise AssertionError(f"no end after {MAX_TOKENS} tokens: {said!r}")


def request(choice: ToolChoice, **options: Any) -> ChatRequest:
    chat = Chat(messages=(), tools=TOOLS)
    return ChatRequest(
        request_id=RequestId("r"), tenant=TenantId("t"), chat=chat, tool_choice=choice, **options
    )


def read(markup: AnswerMarkup, text: str) -> tuple[list[tuple[str, Any]], str, str, int]:
    """Calls, text, thoughts, and how much could not be read."""
    numbers = itertools.count()
    parser = markup.parser(TOOLS, prompt_end="", new_call_id=lambda: f"call {next(numbers)}")
    calls: list[tuple[str, str]] = []
    words = thoughts = ""
    for delta in [*parser.feed(text), *parser.finish()]:
        match delta:
            case ToolCallStart():
                calls.append((delta.name, ""))
            case ToolCallArguments():
                calls[-1] = (calls[-1][0], calls[-1][1] + delta.json)
            case TextDelta():
                words += delta.text
            case ReasoningDelta():
                thoughts += delta.text
    return [(name, json.loads(arguments)) for name, arguments in calls], words, thoughts, parser.num_malformed


def cases() -> Iterator[tuple[str, str]]:
    """Format and template, for each way of writing that a family has."""
    for each in TOOL_FORMATS:
        yield each.name, ""
    names = {each.name for each in TOOL_FORMATS}
    variants = [("mistral", "[ARGS]"), ("deepseek_v3", "```json"), ("dsml", "function_calls")]
    yield from (variant for variant in variants if variant[0] in names)


@pytest.mark.parametrize(("tool_format", "template"), list(cases()))
@pytest.mark.parametrize("seed", range(3))
def test_any_forced_call_is_read_as_a_call(
    tool_format: str, template: str, seed: int, vocabulary: Vocabulary
) -> None:
    markup = markup_of(template, tool_format=tool_format)
    forms = ForcedForms(markup, template=template, control_id=lambda _spelling: None)
    for choice in (
        ToolChoice(mode="any"),
        ToolChoice(mode="any", parallel=False),
        ToolChoice(mode="named", name="read"),
    ):
        grammar = forms.form(request(choice, reasoning=False), prompt_end="")
        assert grammar is not None
        text = wander(grammar, vocabulary, seed)
        calls, words, _thoughts, num_malformed = read(markup, text)
        assert calls, text
        assert (words, num_malformed) == ("", 0), text
        assert choice.mode == "any" or [name for name, _ in calls] == ["read"]
        assert (choice.mode == "any" and choice.parallel) or len(calls) == 1
        for name, arguments in calls:
            check(name, arguments)


@pytest.mark.parametrize("seed", range(4))
def test_a_call_or_json_is_either_and_nothing_else(seed: int, vocabulary: Vocabulary) -> None:
    markup = markup_of("", tool_format="hermes")
    forms = ForcedForms(markup, template="", control_id=lambda _spelling: None)
    schema = {"type": "object", "properties": {"answer": {"enum": ["yes", "no"]}}, "required": ["answer"]}
    grammar = forms.form(request(ToolChoice(), output_schema=schema), prompt_end="")
    assert grammar is not None
    calls, words, _thoughts, num_malformed = read(markup, wander(grammar, vocabulary, seed))
    assert num_malformed == 0
    assert bool(calls) != bool(words)
    if words:
        assert json.loads(words)["answer"] in ("yes", "no")


def test_two_hundred_tools_are_one_form(vocabulary: Vocabulary) -> None:
    tools = tuple(
        ToolSpec(name=f"tool_{n}", description="", parameters=WEATHER.parameters | {"title": str(n)})
        for n in range(200)
    )
    markup = markup_of("", tool_format="hermes")
    forms = ForcedForms(markup, template="", control_id=lambda _spelling: None)
    wanted = ChatRequest(
        request_id=RequestId("r"),
        tenant=TenantId("t"),
        chat=Chat(messages=(), tools=tools),
        tool_choice=ToolChoice(mode="any", parallel=False),
    )
    grammar = forms.form(wanted, prompt_end="")
    assert grammar is not None
    [(name, arguments)] = read(markup, wander(grammar, vocabulary, seed=5))[0]
    assert name.startswith("tool_")
    check("get_weather", arguments)
