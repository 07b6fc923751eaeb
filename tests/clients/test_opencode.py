"""opencode, headless, in both forms it can be configured for."""

from __future__ import annotations

import json

import pytest

from tests.clients.desk import Desk, Done
from tests.clients.documented import block
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


def configure(desk: Desk, server: ScriptedServer, route: str) -> None:
    documented = block("opencode", server)
    assert FORMS["/v1/chat/completions"] in documented
    settings = json.loads(documented.replace(FORMS["/v1/chat/completions"], FORMS[route]))
    folder = desk.home / ".config" / "opencode"
    folder.mkdir(parents=True)
    permission = {"edit": "allow", "bash": "allow"}
    (folder / "opencode.json").write_text(json.dumps({**settings, "permission": permission}))


def run(desk: Desk, server: ScriptedServer, *arguments: str) -> Done:
    environment = {f"OPENCODE_{name}": "1" for name in SWITCHES} | {"KEEPWARM_API_KEY": server.served.key}
    return desk.run("opencode", "run", "--format", "json", *arguments, environment=environment)


def texts(done: Done) -> list[str]:
    return [line["part"]["text"] for line in done.lines() if line["type"] == "text"]


@pytest.mark.parametrize("route", FORMS)
def test_files_are_read_and_written_on_warm_turns(desk: Desk, server: ScriptedServer, route: str) -> None:
    configure(desk, server, route)
    (desk.project / "notes.txt").write_text("the notes say hello\n")
    done = run(desk, server, "Please shout what notes.txt says")
    assert done.status == 0
    assert texts(done) == ["I read.", "It shouts."]
    assert (desk.project / "shout.txt").read_text() == "HELLO\n"
    assert {turn.route for turn in server.turns()} == {route}
    title, *turns = sorted(server.turns(4), key=lambda turn: turn.tokens("prompt"))
    assert title.tokens("prompt") < turns[0].tokens("prompt") / 4  # no tools, beside the first turn
    assert len(turns) == 3
    assert missed(turns) == []


def test_a_session_that_is_continued_begins_warm(desk: Desk, server: ScriptedServer) -> None:
    configure(desk, server, "/v1/chat/completions")
    run(desk, server, "Please say it again")
    again = run(desk, server, "--continue", "say it again")
    assert texts(again) == ["Again."]
    _title, *turns = sorted(server.turns(3), key=lambda turn: turn.tokens("prompt"))
    assert len(turns) == 2
    assert missed(turns) == []
