"""`keepwarm backend`: one replica's front and ranks, told its settings on standard input."""

from __future__ import annotations

import typer

command = typer.Typer(name="backend", add_completion=False, rich_markup_mode=None)


@command.command()
def backend() -> None:
    """Run one backend process (started by `serve`).

    Reads its settings as one line of JSON from standard input, which stays open: its end means
    that the parent is gone, and the backend ends too.
    """
    from keepwarm.backend.serve import run_backend

    raise typer.Exit(run_backend())
