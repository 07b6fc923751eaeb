"""`keepwarm`: finds the command, and turns our errors into one line and an exit status.

A command's module is imported when it is asked for, so that `keepwarm keys` needs no server's
imports and nothing but a model needs torch.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperGroup

from keepwarm import __version__
from keepwarm.core.errors import KeepwarmError, SetupError

EXIT_VERDICT_FAILS: Final = 1
EXIT_WRONG_USE: Final = 2

COMMANDS: Final = ("serve", "demo", "keys", "backend")
"""Each is a module of this package with a `command`: a Typer application of that name."""


class _LazyGroup(TyperGroup):
    """Knows its commands by name and imports them one by one."""

    def list_commands(self, ctx: object) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: object, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        command = typer.main.get_command(import_module(f"keepwarm.cli.{cmd_name}").command)
        command.name = cmd_name
        return command


app = typer.Typer(
    name="keepwarm",
    cls=_LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"keepwarm {__version__}")
        raise typer.Exit


@app.callback()
def keepwarm(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end."),
    ] = False,
) -> None:
    """Serve coding agents from your own GPUs: a warm cache, a fair queue and a memory budget."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit: 0 done, 1 the verdict or the service failed, 2 wrong use.

    An error of our tree becomes one line; anything else is a mistake of ours and keeps its traceback.
    """
    try:
        app(args=arguments, prog_name="keepwarm")
    except KeepwarmError as error:
        typer.echo(f"keepwarm: error: {error}", err=True)
        sys.exit(EXIT_WRONG_USE if isinstance(error, SetupError) else EXIT_VERDICT_FAILS)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(0)
