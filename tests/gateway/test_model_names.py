"""Which names mean the served model."""

from __future__ import annotations

import re

import pytest

from keepwarm.gateway.model_names import MAX_NAME_CHARACTERS, ModelNames

CLAUDE_NAMES = (
    *("haiku", "sonnet", "opus", "default"),
    *("claude-haiku-4-5-20251001", "claude-sonnet-5", "claude-opus-4-8[1m]", "anthropic/claude-sonnet-4.5"),
)


@pytest.mark.parametrize("name", ["smol", "smol[1m]", *CLAUDE_NAMES])
def test_by_default_what_clients_ask_for_by_themselves_means_the_served_model(name: str) -> None:
    assert ModelNames(served="smol").means_served(name)


@pytest.mark.parametrize(
    "name",
    ["", "gpt-9", "Smol", "smol ", "claude", "haiku-4", "xclaude-1", "openai/claude-1", "[1m]", "DEFAULT"],
)
def test_other_names_mean_nothing(name: str) -> None:
    assert not ModelNames(served="smol").means_served(name)


@pytest.mark.parametrize("name", CLAUDE_NAMES)
def test_without_aliases_only_the_served_name_is_known(name: str) -> None:
    names = ModelNames(served="smol", aliases=())

    assert not names.means_served(name)
    assert names.means_served("smol")
    assert names.listed == names.accepted == ("smol",)


def test_a_pattern_means_exactly_itself_but_for_its_stars() -> None:
    names = ModelNames(served="smol", aliases=("gpt-*-x.y", "a+b"))

    assert names.means_served("gpt-9/z-x.y")
    assert names.means_served("a+b")
    for other in ("gpt-9-xzy", "gpt-9-x.y!", "aab", "gpt-"):
        assert not names.means_served(other)


def test_a_served_name_may_hold_anything_and_be_of_any_length() -> None:
    served = "claude-*[x]" + "y" * MAX_NAME_CHARACTERS

    assert ModelNames(served=served, aliases=()).means_served(served)


def test_an_alias_is_not_endless() -> None:
    assert not ModelNames(served="smol").means_served("claude-" + "x" * MAX_NAME_CHARACTERS)


def test_the_served_name_is_listed_first_and_patterns_are_not() -> None:
    assert ModelNames(served="smol").listed == (
        *("smol", "claude-smol", "default", "haiku", "sonnet", "opus"),
    )


@pytest.mark.parametrize("served", ["smol", "Claude-ish", "org/anthropic-x"])
def test_claude_codes_model_discovery_finds_exactly_one_name_and_it_works(served: str) -> None:
    names = ModelNames(served=served)

    kept = [name for name in names.listed if re.search("claude|anthropic", name, re.IGNORECASE)]

    assert len(kept) == 1
    assert names.means_served(kept[0])


def test_every_listed_name_means_the_served_model() -> None:
    names = ModelNames(served="smol", aliases=("x", "y-*", "default"))

    assert names.listed == ("smol", "x", "default")
    assert all(names.means_served(name) for name in names.listed)
