"""A command out of a settings class: each option is declared once, as a field.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class ServeSettings:
        port: Annotated[int, number(int, "--port", help="…", least=0, most=65535)] = 8000

Typer gets the fields as parameters, `docs/settings.md` gets them as a table, and the command gets
one checked object.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from difflib import get_close_matches
from typing import Any, TypeVar, get_type_hints

import typer

from keepwarm.core.errors import BadSetting

SettingsT = TypeVar("SettingsT")

ENVIRONMENT_PREFIX = "KEEPWARM_"


def option(*flags: str, help: str, env: bool = True, **more: Any) -> Any:
    """One option. With `env`, `--some-thing` is also read from KEEPWARM_SOME_THING; the flag wins."""
    flag = flags[0].split("/")[0]
    name = ENVIRONMENT_PREFIX + flag.removeprefix("--").replace("-", "_").upper()
    return typer.Option(*flags, help=help, envvar=name if env else None, **more)


def number(
    kind: type[int] | type[float],
    flag: str,
    *,
    help: str,
    least: float,
    most: float = math.inf,
    open_below: bool = False,
    **more: Any,
) -> Any:
    """An option that is a number, from `least` (`open_below`: above it) to `most`. A wrong one is a
    `BadSetting` that names option, value and limit."""
    limit = _limit_text(least, most, open_below=open_below)

    def parse(text: str) -> int | float:
        try:
            value = kind(text)
        except ValueError:
            raise BadSetting(f"{flag} {text}: must be {_KIND_NAMES[kind]}") from None
        fits = least < value <= most if open_below else least <= value <= most
        if not (fits and math.isfinite(value)):
            raise BadSetting(f"{flag} {value}: must be {limit}")
        return value

    return option(
        flag,
        help=f"{help.removesuffix('.')} ({limit}).",
        parser=parse,
        metavar="INTEGER" if kind is int else "NUMBER",
        **more,
    )


def _limit_text(least: float, most: float, *, open_below: bool) -> str:
    if open_below:
        return f"more than {least:g}" if most == math.inf else f"more than {least:g}, at most {most:g}"
    return f"at least {least}" if most == math.inf else f"between {least} and {most}"


_KIND_NAMES: dict[type, str] = {int: "a whole number", float: "a number"}


def run_with(settings_type: type[SettingsT], run: Callable[[SettingsT], None]) -> Callable[..., None]:
    """A function for Typer whose parameters are the fields of `settings_type`, a dataclass."""

    def command(**values: Any) -> None:
        run(settings_type(**values))

    hints = get_type_hints(settings_type, include_extras=True)
    parameters = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=hints[field.name],
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
        )
        for field in fields(settings_type)  # type: ignore[arg-type]  # any dataclass; typing has no name for it
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__doc__ = run.__doc__
    return command


def environment_names(settings_type: type[object]) -> set[str]:
    """The environment variables that the options of `settings_type` are read from."""
    hints = get_type_hints(settings_type, include_extras=True)
    infos = (info for hint in hints.values() for info in getattr(hint, "__metadata__", ()))
    return {info.envvar for info in infos if isinstance(info.envvar, str)}


def refuse_unknown_variables(settings_type: type[object], environment: Mapping[str, str]) -> None:
    """Raises `BadSetting` for a KEEPWARM_… variable that no option is read from: a typing error
    would otherwise be a setting silently ignored."""
    known = environment_names(settings_type)
    for name in sorted(environment):
        if name.startswith(ENVIRONMENT_PREFIX) and name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else " (known ones: docs/settings.md)"
            raise BadSetting(f"environment variable {name}={environment[name]!r} is no setting{hint}")
