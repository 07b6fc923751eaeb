"""Rebuilds what each tier holds from the lines of `/events`, as docs/events.md tells a reader to."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

Place = tuple[int | None, str]
"""(rank, tier)"""


class EventsReader:
    """Takes a stream cut anywhere."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.is_live = False
        self.end_reason: str | None = None
        self._parents: defaultdict[Place, dict[str, str]] = defaultdict(dict)
        self._begun = b""

    def feed(self, piece: bytes) -> None:
        *lines, self._begun = (self._begun + piece).split(b"\n")
        for line in lines:
            self._take(json.loads(line))

    def names(self, rank: int | None, tier: str) -> set[bytes]:
        return {bytes.fromhex(name) for name in self._parents[rank, tier]}

    def states(self, rank: int) -> list[str]:
        """A rank's, in order."""
        return [line["state"] for line in self.lines if line["event"] == "rank" and line["rank"] == rank]

    def _take(self, line: dict[str, Any]) -> None:
        assert self.end_reason is None, "nothing follows the last line"
        assert bool(self.lines) or line["event"] in ("begin", "end")
        self.lines.append(line)
        match line["event"]:
            case "rank":
                self._parents[line["rank"], "l0"].clear()
            case "host":
                self._parents[None, "l1"].clear()
                self._parents[None, "disk"].clear()
            case "stored":
                self._store(self._parents[line["rank"], line["tier"]], line["parent"], line["names"])
            case "evicted":
                for name in line["names"]:
                    self._parents[line["rank"], line["tier"]].pop(name, None)
            case "live":
                self.is_live = True
            case "end":
                self.end_reason = line["reason"]

    def _store(self, parents: dict[str, str], parent: str, names: list[str]) -> None:
        for name in names:
            parents[name] = parent
            parent = name
