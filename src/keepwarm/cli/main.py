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
from typer.exceptions import TyperException

from keepwarm import __version__
from keepwarm.core.errors import KeepwarmError, SetupError

EXIT_VERDICT_FAILS: Final = 1
EXIT_WRONG_USE: Final = 2
EXIT_INTERRUPTED: Final = 130

COMMANDS: Final = ("serve", "demo", "doctor", "keys", "backend", "hostcache")
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
    add_completion=False,
    pretty_exceptions_enable=False,  # a traceback of ours belongs in a log, whole and plain
    rich_markup_mode=None,  # its tables cut long option names off
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

    An error of our tree or of usage becomes one line; anything else is a mistake of ours and keeps
    its traceback.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        status = app(args=given or ["--help"], prog_name="keepwarm", standalone_mode=False)
    except TyperException as error:
        message = error.format_message().replace("Value error, ", "").rstrip(".")
        _complain(f"{message} (see keepwarm --help, keepwarm COMMAND --help)")
        sys.exit(EXIT_WRONG_USE)
    except KeepwarmError as error:
        _complain(str(error))
        sys.exit(EXIT_WRONG_USE if isinstance(error, SetupError) else EXIT_VERDICT_FAILS)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(EXIT_INTERRUPTED)
    sys.exit(status if isinstance(status, int) else 0)


def _complain(message: str) -> None:
    typer.echo(f"keepwarm: error: {message}", err=True)
