"""Bodies that begin as an earlier one did and mean something else, or cannot be told apart."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any, cast

import pytest

from keepwarm.chat.chain import chain_on, chain_root
from keepwarm.core.ids import TenantId
from keepwarm.core.session import SessionKey
from keepwarm.dialects import anthropic, openai_chat, openai_responses
from keepwarm.dialects.dialect import DEFAULT_OPTIONS, Dialect
from keepwarm.gateway import growing_bodies
from keepwarm.gateway.growing_bodies import GrowingBodies, ReadBody

_ANNA, _SESSION, _REPLICA = TenantId("anna"), SessionKey.of("s", ""), object()
_ANTHROPIC = cast(Dialect, anthropic)
_TALK = [{"role": "assistant" if number % 2 else "user", "content": f"{number}"} for number in range(9)]
_MORE = [{"role": "assistant", "content": "said"}, {"role": "user", "content": "asked"}]
_OTHER = [{"role": "user", "content": "another"}]


@pytest.fixture(autouse=True)
def _small_bodies_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing_bodies, "_MIN_KNOWN_BYTES", 0)


def _body(messages: list[Any], *more: tuple[str, Any], field: str = "messages") -> bytes:
    """Fields in this order, and as often as they are given."""
    fields = [("model", "m"), ("max_tokens", 9), (field, messages), *more]
    return (
        "{" + ",".join(f"{json.dumps(name)}:{json.dumps(value)}" for name, value in fields) + "}"
    ).encode()


def _read_after(earlier: list[bytes], body: bytes, dialect: Dialect = _ANTHROPIC) -> ReadBody:
    """Read when these had been; it is the same conversation as read whole."""
    growing = GrowingBodies(DEFAULT_OPTIONS)
    for each in earlier:
        growing.learn(dialect, growing.read(dialect, each, _ANNA, _SESSION), _REPLICA)
    read = growing.read(dialect, body, _ANNA, _SESSION)
    whole = growing.read_whole(dialect, read)
    assert _name(read) == _name(whole)
    assert read.turn.chat.found_tools == whole.turn.chat.found_tools
    return read


def _name(read: ReadBody) -> bytes:
    chain = chain_root(read.turn.chat.tools) if read.known is None else read.known.chain
    return chain_on(chain, read.turn.chat.messages)[-1]


@pytest.mark.parametrize("module", [anthropic, openai_chat, openai_responses], ids=lambda module: module.NAME)
@pytest.mark.parametrize("second", [_OTHER, _TALK, [*_TALK, *_MORE]], ids=["other", "same", "grown"])
def test_of_two_lists_of_one_name_the_last_counts(module: ModuleType, second: list[Any]) -> None:
    dialect = cast(Dialect, module)
    field = dialect.LIST_FIELD
    grown = _body([*_TALK, *_MORE], (field, second), field=field)
    _read_after([_body(_TALK, field=field)], grown, dialect)
    _read_after([_body(_TALK, (field, second), field=field)], grown, dialect)
    _read_after(
        [_body(_OTHER, (field, _TALK), field=field)],
        _body(_OTHER, (field, [*_TALK, *_MORE]), field=field),
        dialect,
    )


@pytest.mark.parametrize(
    "half",
    [("\\ud800", 1), ("x", "\\ud800"), ("metadata", {"\\ud800": "\\ud800"})],
    ids=["name", "text", "inside"],
)
def test_half_characters_outside_the_list_are_no_trouble(half: tuple[str, Any]) -> None:
    bodies = [
        _body(messages, half).replace(rb"\\ud800", rb"\ud800") for messages in (_TALK, [*_TALK, *_MORE])
    ]
    _read_after(bodies, bodies[-1])


@pytest.mark.parametrize("at", [0, 4, 8])
def test_half_characters_in_a_message_are_no_trouble(at: int) -> None:
    talk = [*_TALK[:at], {**_TALK[at], "content": "half of one: \ud83d"}, *_TALK[at + 1 :]]
    _read_after([_body(talk), _body([*talk, *_MORE])], _body([*talk, *_MORE, *_MORE]))


def _deferred(description: str) -> dict[str, Any]:
    schema = {"type": "object"}
    return {"name": "late", "description": description, "input_schema": schema, "defer_loading": True}


def _told(at: int) -> list[Any]:
    """A conversation in which a search finds the deferred tool."""
    result = {
        "type": "tool_result",
        "tool_use_id": "c",
        "content": [{"type": "tool_reference", "tool_name": "late"}],
    }
    use = {"type": "tool_use", "id": "c", "name": "search", "input": {}}
    found = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    return [*_TALK[:at], *found, *_TALK[at:-1], *_TALK[-1:]]


def test_a_tool_that_was_told_stays_callable() -> None:
    tools = ("tools", [_deferred("as it was")])
    read = _read_after([_body(_told(1), tools)], _body([*_told(1), *_MORE], tools))
    assert read.known is not None
    assert [tool.name for tool in read.turn.chat.found_tools] == ["late"]


def test_a_tool_that_was_told_and_then_changed_is_told_anew() -> None:
    before, after = ("tools", [_deferred("as it was")]), ("tools", [_deferred("as it is")])
    read = _read_after([_body(_told(1), before)], _body([*_told(1), *_MORE], after))
    assert read.known is None


def test_a_tool_that_came_after_it_was_referred_to_is_told() -> None:
    tools = ("tools", [_deferred("new")])
    read = _read_after([_body(_told(1), ("tools", []))], _body([*_told(1), *_MORE], tools))
    assert read.known is None


def test_a_tool_that_never_comes_is_no_reason_to_read_all_again() -> None:
    tools = ("tools", [{**_deferred("another"), "name": "other"}])
    bodies = [_body([*_told(1), *_MORE * times], tools) for times in range(4)]
    assert all(_read_after(bodies[:at], bodies[at]).known is not None for at in (1, 2, 3))
    arrived = _body([*_told(1), *_MORE * 4], ("tools", [_deferred("new")]))
    assert _read_after(bodies, arrived).known is None


def test_a_tool_that_only_the_rewound_end_told_is_not_callable() -> None:
    tools = ("tools", [_deferred("as it was")])
    rewound = [*_TALK[:8], *_OTHER]
    read = _read_after([_body(_told(8), tools)], _body(rewound, tools))
    assert read.known is not None
