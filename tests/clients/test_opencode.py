"""opencode, headless, in both forms it can be configured for."""

from __future__ import annotations

import json

import pytest

from tests.clients.desk import Desk, Done
from tests.clients.scripted_server import ScriptedServer, missed

SCRIPT = r'''
[[answers]]
prompt = "title generator"
say = "Notes"

[[answers]]
when = "shout what notes.txt says"
say = """I read.
<tool_call>
{"name": "read", "arguments": {"filePath": "notes.txt"}}
</tool_call>"""

[[answers]]
when = "the notes say hello"
say = """<tool_call>
{"name": "write", "arguments": {"filePath": "shout.txt", "content": "HELLO\\n"}}
</tool_call>"""

[[answers]]
when = "Wrote file successfully"
say = "It shouts."

[[answers]]
when = "say it again"
say = "Again."
'''

SWITCHES = (
    "DISABLE_AUTOUPDATE",
    "DISABLE_DEFAULT_PLUGINS",
    "DISABLE_LSP_DOWNLOAD",
    "DISABLE_MODELS_FETCH",
    "PURE",
)
FORMS = {"/v1/chat/completions": "@ai-sdk/openai-compatible", "/v1/messages": "@ai-sdk/anthropic"}


def configure(desk: Desk, server: ScriptedServer, package: str) -> None:
    limit = {"context": server.served.max_context_tokens, "output": 8192}
    provider = {
        "npm": package,
        "name": "Keepwarm",
        "options": {"baseURL": f"{server.served.url}/v1", "apiKey": server.served.key},
        "models": {server.served.model: {"name": "Ours", "limit": limit}},
    }
    settings = {
        "$schema": "https://opencode.ai/config.json",
        "provider": {"keepwarm": provider},
        "model": f"keepwarm/{server.served.model}",
        "autoupdate": False,
        "share": "disabled",
        "permission": {"edit": "allow", "bash": "allow"},
    }
    (desk.project / "opencode.json").write_text(json.dumps(settings))


def run(desk: Desk, *arguments: str) -> Done:
    switches = {f"OPENCODE_{name}": "1" for name in SWITCHES}
    return desk.run("opencode", "run", "--format", "json", *arguments, environment=switches)


def texts(done: Done) -> list[str]:
    return [line["part"]["text"] for line in done.lines() if line["type"] == "text"]


@pytest.mark.parametrize("route", FORMS)
def test_files_are_read_and_written_and_the_session_continued(
    desk: Desk, server: ScriptedServer, route: str
) -> None:
    configure(desk, server, FORMS[route])
    (desk.project / "notes.txt").write_text("the notes say hello\n")
    done = run(desk, "Please shout what notes.txt says")
    assert done.status == 0
    assert texts(done) == ["I read.", "It shouts."]
    assert (desk.project / "shout.txt").read_text() == "HELLO\n"
    again = run(desk, "--continue", "say it again")
    assert texts(again) == ["Again."]
    assert {turn.route for turn in server.turns()} == {route}
    title, *turns = sorted(server.turns(), key=lambda turn: turn.tokens("prompt"))
    assert title.tokens("prompt") < turns[0].tokens("prompt") / 4  # no tools, beside the first turn
    assert len(turns) == 4
    assert missed(turns) == []
