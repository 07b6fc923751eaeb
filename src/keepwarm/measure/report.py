"""The one report format: what every tool writes for machines (docs/reports.md). Knows no tool."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

import msgspec


class Report(msgspec.Struct, frozen=True, kw_only=True, rename={"passed": "pass"}):
    """What every report has. A tool's own report derives from it and adds what it measured."""

    tool: str
    version: str
    passed: bool
    settings: dict[str, str | int | float | bool | None]
    problems: tuple[str, ...] = ()
    """Why `passed` is false, one sentence each."""


def encode_report(report: Report) -> bytes:
    """The report as JSON, indented, with a newline at its end."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def median(values: Iterable[float]) -> float | None:
    """The median, or None where nothing was measured."""
    present = list(values)
    return statistics.median(present) if present else None
