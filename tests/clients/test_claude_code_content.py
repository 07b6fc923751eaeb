"""Claude Code: what else than words and plain tools stands in its conversations."""

from __future__ import annotations

import base64

from tests.clients.claude_code import TOOLS, result, run
from tests.clients.desk import Desk
from tests.clients.scripted_server import ScriptedServer, missed

SCRIPT = r'''
[[answers]]
when = "think about two and two"
say = """<think>
Two and two: let me list the folder first.
</think>
I list.
<tool_call>
{"name": "Bash", "arguments": {"command": "echo four", "description": "Say it"}}
</tool_call>"""

[[answers]]
when = "<tool_response>\nfour"
say = "<think>\nThat was it.\n</think>\nFour."

[[answers]]
when = "think again"
say = "Still four."

[[answers]]
when = "look at dot.png"
say = """<tool_call>
{"name": "Read", "arguments": {"file_path": "dot.png"}}
</tool_call>"""

[[answers]]
when = "find the tool for notebooks"
say = """<tool_call>
{"name": "ToolSearch", "arguments": {"query": "select:NotebookEdit"}}
</tool_call>"""

[[answers]]
prompt = "find the tool for notebooks"
say = "There it is."

[[answers]]
prompt = "look at dot.png"
say = "A dot."
'''
# One transparent pixel.
DOT = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)


def test_thoughts_are_apart_and_come_back_as_they_were(desk: Desk, server: ScriptedServer) -> None:
    done = run(desk, server, "Please think about two and two", "--allowedTools", "Bash(echo:*)")
    blocks = [
        block for line in done.lines() if line["type"] == "assistant" for block in line["message"]["content"]
    ]
    assert [block["type"] for block in blocks] == ["thinking", "text", "tool_use", "thinking", "text"]
    assert blocks[0]["thinking"].strip() == "Two and two: let me list the folder first."
    assert result(done)["result"].strip() == "Four."
    run(desk, server, "think again", "--continue")
    assert len(server.turns(3)) == 3
    assert missed(server.turns()) == []


def test_an_image_in_a_result_does_not_end_a_session(desk: Desk, server: ScriptedServer) -> None:
    (desk.project / "dot.png").write_bytes(DOT)
    done = run(desk, server, "Please look at dot.png")
    assert result(done)["result"] == "A dot."
    assert missed(server.turns()) == []


def test_a_tool_that_is_looked_up_leaves_the_prefix_as_it_was(desk: Desk, server: ScriptedServer) -> None:
    done = run(desk, server, "Please find the tool for notebooks", "--allowedTools", f"{TOOLS},ToolSearch")
    assert result(done)["result"] == "There it is."
    assert len(server.turns(2)) == 2
    assert missed(server.turns()) == []


def test_the_context_command_is_answered_with_counts(desk: Desk, server: ScriptedServer) -> None:
    done = run(desk, server, "/context")
    assert done.status == 0
    counts = [request for request in server.requests() if request.route.endswith("/count_tokens")]
    assert counts
    assert {request.status for request in counts} == {200}
