"""`python -m keepwarm …` as a user calls it: a process of its own, with an environment of its own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

COMMAND_LIMIT_S = 60.0


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Ours without any Keepwarm setting, and `more`."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("KEEPWARM_")}
    return plain | {"COLUMNS": "200", "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"} | dict(more or {})


def run(
    *arguments: str, more: Mapping[str, str] | None = None, limit_s: float = COMMAND_LIMIT_S
) -> subprocess.CompletedProcess[str]:
    """One command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "keepwarm", *arguments],
        capture_output=True,
        text=True,
        timeout=limit_s,
        env=environment(more),
        check=False,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """`keepwarm serve --engine scripted --json -`, and what it said when it was ready."""

    process: subprocess.Popen[str]
    ready: dict[str, Any]
    log: Path

    @property
    def url(self) -> str:
        return str(self.ready["url"])


@contextlib.contextmanager
def serving(folder: Path, *options: str, more: Mapping[str, str] | None = None) -> Iterator[Serving]:
    """A server with made-up tokens, its data in `folder`, ended at the end."""
    with start(folder, *options, more=more) as (process, log):
        yield Serving(process=process, ready=read_document(process, log), log=log)


@contextlib.contextmanager
def start(
    folder: Path, *options: str, more: Mapping[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """The same, not waited for. Standard output carries the JSON alone, the rest goes to a file."""
    log = folder / "serve.log"
    with log.open("w") as file:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "keepwarm", "serve", "--engine", "scripted"),
                *("--port", "0", "--json", "-", "--data-dir", str(folder / "data"), *options),
            ],
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            env=environment(more),
        )
    try:
        yield process, log
    finally:
        process.terminate()
        process.communicate(timeout=COMMAND_LIMIT_S)


def read_document(process: subprocess.Popen[str], log: Path) -> dict[str, Any]:
    """The JSON document, which ends with a line that is a closing brace."""
    stream: IO[str] | None = process.stdout
    assert stream is not None
    lines: list[str] = []
    for line in stream:
        lines.append(line)
        if line == "}\n":
            document: dict[str, Any] = json.loads("".join(lines))
            return document
    raise AssertionError(f"no document; the log:\n{log.read_text()}")
