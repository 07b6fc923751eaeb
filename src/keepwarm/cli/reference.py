"""The options of every command as Markdown: the generated part of docs/settings.md, and its writer.

`python -m keepwarm.cli.reference docs/settings.md` replaces what stands between the two markers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from keepwarm.cli.main import app

BEGIN = "<!-- begin: written by `make docs` -->"
END = "<!-- end -->"


def options_as_markdown() -> str:
    """A section and a table for each command that a person may call."""
    return "\n".join(_section(name, command) for name, command in commands() if not command.hidden)


def commands() -> Iterator[tuple[str, Any]]:
    """Every command with its full name, groups opened up: ("keepwarm keys create", command)."""
    yield from _commands_below("keepwarm", typer.main.get_command(app))


def options_of(command: Any) -> list[Any]:
    """The options and arguments a person may give."""
    return [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]


def replace_generated(document: str, generated: str) -> str:
    """`document` with the text between the markers replaced."""
    before, rest = document.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n{generated}\n{END}{after}"


def _commands_below(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "list_commands"):
        yield name, command
        return
    context = typer.Context(command, info_name=name)
    for child in command.list_commands(context):
        yield from _commands_below(f"{name} {child}", command.get_command(context, child))


def _section(name: str, command: Any) -> str:
    summary = (command.help or "").split("\n\n")[0].replace("\n", " ")
    rows = [_row(option) for option in options_of(command)]
    table = ["| option | default | variable | meaning |", "|---|---|---|---|", *rows] if rows else []
    return "\n".join([f"### `{name}`", "", summary, "", *table, ""])


def _row(option: Any) -> str:
    names = "/".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    if option.param_type_name == "argument":
        names = f"`{option.name.upper()}`"
    variable = f"`{option.envvar}`" if option.envvar else ""
    meaning = (option.help or "").replace("|", "\\|")
    return f"| {names} | {_default(option)} | {variable} | {meaning} |"


def _default(option: Any) -> str:
    if isinstance(getattr(option, "show_default", None), str):
        return str(option.show_default)
    if option.required:
        return "required"
    if isinstance(option.default, bool):
        return "on" if option.default else "off"
    return "" if option.default is None else f"`{option.default}`"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(replace_generated(path.read_text(), options_as_markdown()))
