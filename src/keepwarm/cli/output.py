"""Where a command's words go: tables and sentences for people, one JSON document for machines."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Annotated

from rich.console import Console

from keepwarm.cli.settings_command import option
from keepwarm.core.errors import BadSetting

STDOUT = "-"

ReportOption = Annotated[
    str | None,
    option(
        "--json",
        help="Write the report (docs/reports.md) there; - is standard output.",
        env=False,
        show_default="no file",
    ),
]


def console_beside(json_target: str | None) -> Console:
    """A console for people: standard error when the JSON goes to standard output."""
    return Console(stderr=json_target == STDOUT, highlight=False, soft_wrap=True)


def check_json_target(target: str | None) -> None:
    """Raises `BadSetting` for a `--json` that cannot be written: known now, not after minutes of work."""
    if target is None or target == STDOUT:
        return
    path = Path(target).absolute()
    if path.is_dir():
        raise BadSetting(f"--json {target}: is a folder")
    if not path.parent.is_dir():
        raise BadSetting(f"--json {target}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise BadSetting(f"--json {target}: {path.parent} is not writable for this user")


def write_json(document: bytes, target: str) -> None:
    """Write to a file, whole or not at all and for its owner only; "-" is standard output."""
    if target == STDOUT:
        sys.stdout.buffer.write(document)
        sys.stdout.buffer.flush()
        return
    path = Path(target).absolute()
    descriptor, draft = tempfile.mkstemp(
        dir=path.parent, prefix=f".{path.name}."
    )  # mode 0600: may hold a key
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(document)
        os.replace(draft, path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


def start_logging(level: str) -> None:
    """One line a record on standard error."""
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for chatty in ("httpx", "httpcore", "uvicorn"):  # a line for each internal request, each poll, each start
        logging.getLogger(chatty).setLevel(logging.WARNING)


def print_backend_line(line: str) -> None:
    """A line of the backend's log, as it wrote it; not its last word, which becomes our own error."""
    if not line.startswith("error: "):
        sys.stderr.write(f"{line}\n")


def print_backend_trouble(line: str) -> None:
    """The same, for those who want to hear of nothing else: what is not of level INFO."""
    if " INFO " not in line:
        print_backend_line(line)
