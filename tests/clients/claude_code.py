"""How the tests run Claude Code, and read what it says."""

from __future__ import annotations

from typing import Any

from tests.clients.desk import Desk, Done
from tests.clients.scripted_server import ScriptedServer

TOOLS = "Read,Write,Bash(wc:*)"


def environment(server: ScriptedServer) -> dict[str, str]:
    return {
        "ANTHROPIC_BASE_URL": server.served.url,
        "ANTHROPIC_API_KEY": server.served.key,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }


def run(desk: Desk, server: ScriptedServer, prompt: str, *options: str, **extra: str) -> Done:
    return desk.run(
        "claude",
        *("-p", prompt, "--output-format", "stream-json", "--verbose", "--allowedTools", TOOLS, *options),
        environment={**environment(server), **extra},
    )


def result(done: Done) -> dict[str, Any]:
    """The last line, which sums up; there is one more before it for each answer that did not end the run."""
    return [line for line in done.lines() if line["type"] == "result"][-1]
