"""`keepwarm hostcache`: the owner of a replica's host memory, told its settings on standard input."""

from __future__ import annotations

import typer

command = typer.Typer(name="hostcache", add_completion=False, rich_markup_mode=None)


@command.command()
def hostcache() -> None:
    """Run the process that owns the cache in host memory (started by `serve`).

    Reads its settings as one line of JSON from standard input, which stays open: its end means
    that the parent is gone, and the process ends too, and with it what it held.
    """
    from keepwarm.backend.hostcache import run_hostcache

    raise typer.Exit(run_hostcache())
