"""Claude Code in a conversation that outgrows the model's context."""

from __future__ import annotations

from collections.abc import Mapping

from tests.clients.claude_code import result, run
from tests.clients.desk import Desk, Done
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


def ask(desk: Desk, server: ScriptedServer, environment: Mapping[str, str] | None = None) -> Done:
    (desk.project / "long.txt").write_text("alpha beta gamma delta epsilon zeta\n" * 400 + "omega\n")
    question = "What is the last word of long.txt?"
    return run(desk, server, question, "--allowedTools", "Bash(cat:*)", environment=environment)


def compactions(done: Done) -> list[str]:
    """What each was started by."""
    found = [line for line in done.lines() if line.get("subtype") == "compact_boundary"]
    return [line["compact_metadata"]["trigger"] for line in found]


def test_a_client_that_knows_the_context_compacts_before_it_is_full(
    desk: Desk, server: ScriptedServer
) -> None:
    done = ask(desk, server)
    assert result(done)["result"] == "The last word is omega."
    assert compactions(done) == ["auto"]
    assert {request.outcome for request in server.requests()} == {"ok"}


def test_a_client_that_does_not_compacts_once_a_prompt_is_refused(desk: Desk, server: ScriptedServer) -> None:
    bare = {"ANTHROPIC_BASE_URL": server.served.url, "ANTHROPIC_API_KEY": server.served.key}
    done = ask(desk, server, bare)
    assert result(done)["result"] == "The last word is omega."
    assert compactions(done) == ["auto"]
    assert "context_too_long" in {request.outcome for request in server.requests()}
