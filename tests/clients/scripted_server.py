"""A server that says what a script tells it to, and what its log tells of the requests."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.served import Served, eventually, serve

BLOCK_TOKENS = 16
CONTEXT_TOKENS = 200_000
_LOG_LIMIT_S = 5.0
_REQUEST_LINE = re.compile(r" keepwarm\.gateway\.requests: request (.*)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRequest:
    """One line of the request log."""

    fields: dict[str, str]

    @property
    def route(self) -> str:
        return self.fields["route"]

    @property
    def status(self) -> int:
        return int(self.fields["status"])

    @property
    def outcome(self) -> str:
        return self.fields["outcome"]

    @property
    def session(self) -> tuple[str, str]:
        """The client's conversation, and the subagent in it."""
        return self.fields.get("session", ""), self.fields.get("agent", "")

    def tokens(self, kind: str) -> int:
        return int(self.fields[f"{kind}_tokens"])

    def is_turn(self) -> bool:
        """An answer was given."""
        return self.outcome == "ok" and "output_tokens" in self.fields


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedServer:
    """`since` is where in the log the current test's part begins."""

    served: Served
    since: int = 0

    def from_here(self) -> ScriptedServer:
        """The same server, with what was logged so far left out."""
        return ScriptedServer(served=self.served, since=self.served.log.stat().st_size)

    def log(self) -> str:
        return self.served.log.read_bytes()[self.since :].decode()

    def requests(self, num_expected: int = 0) -> list[LoggedRequest]:
        """In the order in which they ended. A line may come just after its answer: waits for as many."""
        with contextlib.suppress(AssertionError):  # what is missing is the test's to tell
            eventually(lambda: len(requests_in(self.log())) >= num_expected, limit_s=_LOG_LIMIT_S)
        return requests_in(self.log())

    def turns(self, num_expected: int = 0, *, agent: str | None = "") -> list[LoggedRequest]:
        """Answered requests: the main loop's, a subagent's, or (None) everybody's."""
        turns = [request for request in self.requests(num_expected) if request.is_turn()]
        return [turn for turn in turns if agent is None or turn.session[1] == agent]


def requests_in(log: str) -> list[LoggedRequest]:
    """One of each line of the request log, in order."""
    found = (_REQUEST_LINE.search(line) for line in log.splitlines())
    return [LoggedRequest(fields=dict(re.findall(r"(\w+)=(\S*)", match[1]))) for match in found if match]


@contextlib.contextmanager
def scripted_server(folder: Path, script: str, *options: str) -> Iterator[ScriptedServer]:
    """The whole stack in its own processes, with room for what coding agents send."""
    file = folder / "script.toml"
    file.write_text(script)
    with serve(
        folder,
        *("--engine", "scripted", "--script", str(file), "--block-size", str(BLOCK_TOKENS)),
        *("--max-model-len", str(CONTEXT_TOKENS), *options),
    ) as served:
        yield ScriptedServer(served=served)


def missed(turns: Sequence[LoggedRequest]) -> list[str]:
    """Turns of one conversation that were cached for less than the turn before them left behind."""
    found = []
    for earlier, later in itertools.pairwise(turns):
        known = earlier.tokens("prompt") + earlier.tokens("output")
        expected = known // BLOCK_TOKENS * BLOCK_TOKENS - BLOCK_TOKENS
        if later.tokens("cached") < expected:
            found.append(f"expected {expected} cached tokens: {later.fields}")
    return found
