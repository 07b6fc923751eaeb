"""Codex, headless, over /v1/responses."""

from __future__ import annotations

from tests.clients.desk import Desk, Done
from tests.clients.documented import block
from tests.clients.scripted_server import ScriptedServer, missed

SCRIPT = r'''
[[answers]]
when = "count the bytes of notes.txt"
say = """I count.
<tool_call>
{"name": "exec_command", "arguments": {"cmd": "wc -c < notes.txt"}}
</tool_call>"""

[[answers]]
when = "(?m)^6$"
say = "notes.txt has 6 bytes."

[[answers]]
when = "say it again"
say = "Again: 6 bytes."
'''


# Without these it looks for plugins and apps at its vendor's, and tells of itself.
QUIET = """
[analytics]
enabled = false

[features]
plugins = false
remote_plugin = false
apps = false
"""


def configure(desk: Desk, server: ScriptedServer) -> None:
    folder = desk.home / ".codex"
    folder.mkdir()
    (folder / "config.toml").write_text(
        "check_for_update_on_startup = false\n" + block("Codex", server) + QUIET
    )


def run(desk: Desk, server: ScriptedServer, *arguments: str) -> Done:
    options = ("--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
    return desk.run(
        "codex", "exec", *options, *arguments, environment={"KEEPWARM_API_KEY": server.served.key}
    )


def messages(done: Done) -> list[str]:
    """What the agent said."""
    items = [line["item"] for line in done.lines() if line["type"] == "item.completed"]
    return [item["text"] for item in items if item["type"] == "agent_message"]


def test_a_command_is_run_and_the_session_resumed_on_warm_turns(desk: Desk, server: ScriptedServer) -> None:
    configure(desk, server)
    (desk.project / "notes.txt").write_text("hello\n")
    done = run(desk, server, "Please count the bytes of notes.txt")
    assert done.status == 0
    assert messages(done) == ["I count.", "notes.txt has 6 bytes."]
    again = run(desk, server, "resume", "--last", "say it again")
    assert messages(again) == ["Again: 6 bytes."]
    assert {turn.route for turn in server.turns()} == {"/v1/responses"}
    assert len(server.turns(3)) == 3
    assert missed(server.turns()) == []
    assert desk.door.asked_for == []
