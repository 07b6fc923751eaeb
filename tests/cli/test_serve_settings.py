"""Options of `keepwarm serve` that are more than a number."""

from __future__ import annotations

import pytest
import typer

from keepwarm.cli.serve_settings import ServeSettings
from keepwarm.cli.settings_command import run_with
from keepwarm.core.errors import BadSetting
from keepwarm.gateway.model_names import DEFAULT_ALIASES


def settings(*arguments: str) -> ServeSettings:
    heard: list[ServeSettings] = []
    app = typer.Typer(add_completion=False)
    app.command()(run_with(ServeSettings, heard.append))
    app(args=list(arguments), standalone_mode=False)
    return heard[0]


def test_aliases_add_to_the_default_ones() -> None:
    assert settings().aliases == DEFAULT_ALIASES
    assert settings("--alias", "gpt-*", "--alias", "x").aliases == (*DEFAULT_ALIASES, "gpt-*", "x")


def test_the_default_aliases_can_be_left_out() -> None:
    assert settings("--no-default-aliases").aliases == ()
    assert settings("--no-default-aliases", "--alias", "x").aliases == ("x",)


def test_the_variable_holds_several_aliases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEEPWARM_ALIAS", "gpt-* x")

    assert settings("--no-default-aliases").aliases == ("gpt-*", "x")


@pytest.mark.parametrize(
    ("alias", "complaint"),
    [
        ("", "--alias '': must be a name"),
        ("a b", "--alias 'a b': must be a name, without blanks"),
        ("a\n", r"--alias 'a\\n': must be a name"),
        ("x" * 201, "--alias xxxxxxxxxxxxxxxxxxxx…: has 201 characters; at most 200 are allowed"),
    ],
)
def test_an_alias_that_no_client_can_ask_for_is_refused(alias: str, complaint: str) -> None:
    with pytest.raises(BadSetting, match=complaint):
        settings("--alias", alias)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--device-cache-gb", "0"), "--device-cache-gb 0.0: must be more than 0"),
        (("--gpu-memory-utilization", "0"), "--gpu-memory-utilization 0.0: must be more than 0, at most 1"),
        (("--disk-cache-gb", "-1"), "--disk-cache-gb -1.0: must be at least 0"),
        (
            ("--disk-cache-gb", "5", "--host-cache-gb", "0"),
            "--disk-cache-gb 5 lies below host memory, and --host-cache-gb is 0",
        ),
        (("--script-step-ms", "5"), "--script-step-ms 5.0 is for --engine scripted; --engine is torch"),
        (
            ("--engine", "scripted", "--model", "m"),
            "--model m is not read by --engine scripted without --script",
        ),
        (("--served-model-name", ""), "--served-model-name '': must be a name"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_loaded(
    arguments: tuple[str, ...], complaint: str
) -> None:
    with pytest.raises(BadSetting, match=complaint):
        settings(*arguments)


def test_host_memory_is_an_amount_of_memory() -> None:
    assert settings().host_cache_gb is None
    assert settings("--host-cache-gb", "0").host_cache_gb == 0.0
    assert settings("--host-cache-gb", "1.5").host_cache_gb == 1.5


@pytest.mark.parametrize("wrong", ["-1", "nan", "inf", "1e999", "much"])
def test_what_is_no_amount_of_memory_is_refused(wrong: str) -> None:
    with pytest.raises(BadSetting, match="--host-cache-gb"):
        settings(f"--host-cache-gb={wrong}")
