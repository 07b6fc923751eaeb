"""`keepwarm serve`: everything on this machine, until a signal ends it."""

from __future__ import annotations

import typer

from keepwarm.cli.serve_settings import ServeSettings
from keepwarm.cli.settings_command import run_with

command = typer.Typer(name="serve", add_completion=False, rich_markup_mode=None)


def _serve(settings: ServeSettings) -> None:
    """Serve a model: the embedded one, unless --model names another.

    Prints the URL, a key on the first start, and the environment for Claude Code. Ctrl-C ends it.
    """
    from keepwarm.cli.serve_until_stopped import serve  # with it come the server's imports

    serve(settings)


command.command()(run_with(ServeSettings, _serve))
