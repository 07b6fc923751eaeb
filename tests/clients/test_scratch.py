"""Claude Code, headless, against the whole stack."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.clients.desk import Desk, Done
from tests.clients.scripted_server import ScriptedServer, missed

SCRIPT = r'''
[[answers]]
when = "shout what notes.txt says"
say = """I read the notes first.
<tool_call>
{"name": "Read", "arguments": {"file_path": "notes.txt"}}
</tool_call>"""

[[answers]]
when = "the notes say hello"
say = """<tool_call>
{"name": "Write", "arguments": {"file_path": "shout.txt", "content": "HELLO\\n"}}
</tool_call>"""

[[answers]]
when = "<tool_response>\nFile created successfully"
say = """<tool_call>
{"name": "Bash", "arguments": {"command": "wc -c < shout.txt", "description": "Count the bytes"}}
</tool_call>"""

[[answers]]
when = "<tool_response>\n6\n"
say = "Done: shout.txt has 6 bytes."

[[answers]]
when = "say it again"
say = "Again: 6 bytes."
'''

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


def result(done: Done) -> Mapping[str, Any]:
    """The last line, which sums up."""
    (found,) = [line for line in done.lines() if line["type"] == "result"]
    assert isinstance(found, dict)
    return found


def test_a_task_of_several_tools_is_done_on_warm_turns(desk: Desk, server: ScriptedServer) -> None:
    (desk.project / "notes.txt").write_text("the notes say hello\n")
    done = run(desk, server, "Please shout what notes.txt says")
    assert done.status == 0
    assert result(done)["result"] == "Done: shout.txt has 6 bytes."
    assert (desk.project / "shout.txt").read_text() == "HELLO\n"
    turns = server.turns()
    assert len(turns) == 4
    assert missed(turns) == []
    assert desk.door.asked_for == []
    assert 0
