"""qwen-code, headless, over /v1/chat/completions."""

from __future__ import annotations

import json

from tests.clients.desk import Desk, Done
from tests.clients.documented import variables
from tests.clients.scripted_server import ScriptedServer, missed

SCRIPT = r'''
[[answers]]
when = "count the bytes of notes.txt"
say = """I count.
<tool_call>
{"name": "run_shell_command", "arguments": {"command": "wc -c < notes.txt", "is_background": false}}
</tool_call>"""

[[answers]]
when = "(?m)\\b6$"
say = "notes.txt has 6 bytes."

[[answers]]
when = "say it again"
say = "Again: 6 bytes."
'''


def configure(desk: Desk) -> None:
    folder = desk.home / ".qwen"
    folder.mkdir()
    quiet = {
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "general": {"enableAutoUpdate": False},
    }
    (folder / "settings.json").write_text(json.dumps(quiet))


def run(desk: Desk, server: ScriptedServer, *arguments: str) -> Done:
    environment = variables("qwen-code", server)
    # It would ask a proxy for loopback too, whatever NO_PROXY says.
    return desk.run(
        "qwen", "--auth-type", "openai", "--yolo", *arguments, environment=environment, through_door=False
    )


def test_a_command_is_run_and_the_session_continued_on_warm_turns(desk: Desk, server: ScriptedServer) -> None:
    configure(desk)
    (desk.project / "notes.txt").write_text("hello\n")
    done = run(desk, server, "-p", "Please count the bytes of notes.txt")
    assert done.status == 0
    assert "notes.txt has 6 bytes." in done.stdout
    again = run(desk, server, "--continue", "-p", "say it again")
    assert "Again: 6 bytes." in again.stdout
    assert {turn.route for turn in server.turns()} == {"/v1/chat/completions"}
    first = server.turns(3)[0].tokens("prompt")
    turns = [turn for turn in server.turns() if turn.tokens("prompt") >= first]
    assert len(turns) == 3  # and shorter ones at its own wish: what is to be remembered of the session
    assert missed(turns) == []
