"""How the tests run Claude Code, and read what it says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.clients.desk import Desk, Done
from tests.clients.documented import variables
from tests.clients.scripted_server import ScriptedServer

TOOLS = "Read,Write,Bash(wc:*)"


def run(
    desk: Desk,
    server: ScriptedServer,
    prompt: str,
    *options: str,
    environment: Mapping[str, str] | None = None,
) -> Done:
    """One headless run, with the environment of docs/clients.md unless another is given."""
    return desk.run(
        "claude",
        *("-p", prompt, "--output-format", "stream-json", "--verbose", "--allowedTools", TOOLS, *options),
        environment=environment or variables("Claude Code", server),
    )


def result(done: Done) -> dict[str, Any]:
    """The last line, which sums up; there is one more before it for each answer that did not end the run."""
    return [line for line in done.lines() if line["type"] == "result"][-1]
