"""Claude Code in a conversation that outgrows the model's context."""

from __future__ import annotations

from tests.clients.claude_code import result, run
from tests.clients.desk import Desk
from tests.clients.scripted_server import ScriptedServer

OPTIONS = ("--max-model-len", "32000")
SCRIPT = r'''
[[answers]]
when = "create a detailed summary"
say = "<summary>\nlong.txt was shown; the user wants its last word, which is omega.\n</summary>"

[[answers]]
prompt = "its last word, which is omega"
say = "The last word is omega."

[[answers]]
say = """I look.
<tool_call>
{"name": "Bash", "arguments": {"command": "cat long.txt", "description": "Show it"}}
</tool_call>"""
'''


def test_a_conversation_that_no_longer_fits_is_compacted_by_the_client(
    desk: Desk, server: ScriptedServer
) -> None:
    (desk.project / "long.txt").write_text("alpha beta gamma delta epsilon zeta\n" * 400 + "omega\n")
    done = run(desk, server, "What is the last word of long.txt?", "--allowedTools", "Bash(cat:*)")
    assert done.status == 0
    assert result(done)["result"] == "The last word is omega."
    assert "context_too_long" in [request.outcome for request in server.requests()]
    (boundary,) = [line for line in done.lines() if line.get("subtype") == "compact_boundary"]
    assert boundary["compact_metadata"]["trigger"] == "auto"
