"""`keepwarm demo`: a few agents against the embedded model, and a verdict about the cache."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from keepwarm.cli.output import ReportOption
from keepwarm.cli.settings_command import number, option, run_with

command = typer.Typer(name="demo", add_completion=False, rich_markup_mode=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """How much of a demo, and on which model."""

    model: Annotated[
        Path | None,
        option(
            "--model",
            help="A Hugging Face folder or a GGUF file.",
            env=False,
            show_default="the embedded model",
        ),
    ] = None
    agents: Annotated[int, number(int, "--agents", help="Agents.", env=False, least=1, most=100)] = 3
    turns: Annotated[
        int, number(int, "--turns", help="Turns of each agent.", env=False, least=2, most=100)
    ] = 4
    max_tokens: Annotated[
        int, number(int, "--max-tokens", help="Tokens an answer may have.", env=False, least=1, most=4096)
    ] = 24
    engine: Annotated[
        Literal["torch", "scripted"],
        option("--engine", help="scripted: made-up tokens, for tests.", env=False, hidden=True),
    ] = "torch"
    json: ReportOption = None


def _demo(options: DemoOptions) -> None:
    """Show cold and warm turns of a few agents, and check them: about two minutes on two cores.

    Serves a model on a free port with a data folder of its own, runs the agents through /v1/messages, then
    every request again without the cache. Exit status 0: no turn missed and every answer equals its cold run.
    """
    from keepwarm.cli.demo_run import demo  # with it come the server's imports

    if not demo(options):
        raise typer.Exit(1)


command.command()(run_with(DemoOptions, _demo))
