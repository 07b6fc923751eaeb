"""`keepwarm doctor`: looks at what would be served, and says what it will cost."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from keepwarm.cli.model_choice import is_installed
from keepwarm.cli.output import ReportOption
from keepwarm.cli.settings_command import option, run_with
from keepwarm.core.errors import BadSetting

command = typer.Typer(name="doctor", add_completion=False, rich_markup_mode=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    """What to look at."""

    template: Annotated[
        Path | None,
        option(
            "--template",
            help="A Hugging Face folder or a GGUF file, for its chat template; or a Jinja file alone, which "
            "is tried with the embedded model's tokenizer.",
            env=False,
            metavar="PATH",
            show_default="the embedded model",
        ),
    ] = None
    json: ReportOption = None


def _doctor(options: DoctorOptions) -> None:
    """Try a chat template on a growing conversation: what it rewrites, and the tokens that costs a turn.

    Needs no weights. Exit status 0: nothing that costs; 1: a finding of severity warning.
    """
    if not is_installed("tokenizers"):
        raise BadSetting("this installation has no tokenizers: run `pip install 'keepwarm[engine]'`")
    from keepwarm.cli.doctor_run import doctor  # with it come tokenizers and templates

    if not doctor(options):
        raise typer.Exit(1)


command.command()(run_with(DoctorOptions, _doctor))
