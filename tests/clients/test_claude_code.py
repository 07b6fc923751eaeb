"""Claude Code, headless, against the whole stack."""

from __future__ import annotations

import json

from tests.clients.claude_code import TOOLS, result, run
from tests.clients.desk import Desk
from tests.clients.installed import client_command
from tests.clients.scripted_server import ScriptedServer, missed
from tests.clients.terminal import terminal
from tests.e2e.served import eventually

SCRIPT = r'''
[[answers]]
prompt = "You are naming a coding session"
say = "{\"title\": \"Repetition\"}"

[[answers]]
when = "create a detailed summary"
say = """<analysis>
The user wanted a shout.
</analysis>
<summary>
shout.txt was written: 6 bytes.
</summary>"""

[[answers]]
when = "what do you remember"
prompt = "shout.txt was written: 6 bytes."
say = "The summary."

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

[[answers]]
when = "ask somebody else"
say = """<tool_call>
{"name": "Agent", "arguments": {"description": "Read the notes", "subagent_type": "general-purpose",
"prompt": "find the word in notes.txt"}}
</tool_call>"""

[[answers]]
when = "Async agent launched successfully"
say = "I wait for them."

[[answers]]
when = "find the word in notes.txt"
say = """<tool_call>
{"name": "Read", "arguments": {"file_path": "notes.txt"}}
</tool_call>"""

[[answers]]
when = "the word is xylophone"
say = "I found xylophone."

[[answers]]
when = "I found xylophone"
say = "They found xylophone."
'''


# What is switched off without the switch for all of it, which would also do without titles.
QUIET = {"DISABLE_AUTOUPDATER": "1", "DISABLE_TELEMETRY": "1", "DISABLE_ERROR_REPORTING": "1"}


def test_a_task_of_several_tools_is_done_on_warm_turns(desk: Desk, server: ScriptedServer) -> None:
    (desk.project / "notes.txt").write_text("the notes say hello\n")
    done = run(desk, server, "Please shout what notes.txt says")
    assert done.status == 0
    assert result(done)["result"] == "Done: shout.txt has 6 bytes."
    assert (desk.project / "shout.txt").read_text() == "HELLO\n"
    turns = server.turns(4)
    assert len(turns) == 4
    assert missed(turns) == []
    assert desk.door.asked_for == []


def test_a_session_that_is_continued_begins_warm(desk: Desk, server: ScriptedServer) -> None:
    (desk.project / "notes.txt").write_text("the notes say hello\n")
    first = run(desk, server, "Please shout what notes.txt says")
    again = run(desk, server, "say it again", "--continue")
    assert result(again)["result"] == "Again: 6 bytes."
    by_id = run(desk, server, "say it again", "--resume", result(first)["session_id"])
    assert result(by_id)["result"] == "Again: 6 bytes."
    assert len(server.turns(6)) == 6
    assert missed(server.turns()) == []


def test_a_session_is_compacted_and_goes_on_from_the_summary(desk: Desk, server: ScriptedServer) -> None:
    (desk.project / "notes.txt").write_text("the notes say hello\n")
    run(desk, server, "Please shout what notes.txt says")
    compacted = run(desk, server, "/compact", "--continue")
    assert compacted.status == 0
    assert missed(server.turns()) == []
    after = run(desk, server, "what do you remember", "--continue")
    assert result(after)["result"] == "The summary."


def test_a_subagent_works_under_a_name_of_its_own(desk: Desk, server: ScriptedServer) -> None:
    (desk.project / "notes.txt").write_text("the word is xylophone\n")
    done = run(desk, server, "Please ask somebody else", "--allowedTools", f"{TOOLS},Agent")
    assert result(done)["result"] == "They found xylophone."
    (agent,) = {turn.session[1] for turn in server.turns(agent=None)} - {""}
    assert len(server.turns(agent=agent)) == 2
    assert missed(server.turns(agent=agent)) == []
    assert missed(server.turns()) == []


def test_the_address_and_a_key_are_enough(desk: Desk, server: ScriptedServer) -> None:
    (desk.project / "notes.txt").write_text("the notes say hello\n")
    bare = {"ANTHROPIC_BASE_URL": server.served.url, "ANTHROPIC_API_KEY": server.served.key}
    done = run(desk, server, "Please shout what notes.txt says", environment=bare)
    assert result(done)["result"] == "Done: shout.txt has 6 bytes."
    (model,) = result(done)["modelUsage"]
    assert model.startswith("claude-")  # its own choice, which means the served model here
    assert {turn.fields["model"] for turn in server.turns()} == {server.served.model}


def test_a_wrong_key_is_told_at_once(desk: Desk, server: ScriptedServer) -> None:
    wrong = {"ANTHROPIC_BASE_URL": server.served.url, "ANTHROPIC_API_KEY": "ik_live_wrong"}
    done = run(desk, server, "hello", environment=wrong)
    assert done.status == 1
    assert "Invalid API key" in result(done)["result"]
    assert {request.status for request in server.requests()} == {401}


def test_at_a_terminal_a_session_gets_its_title_from_the_served_model(
    desk: Desk, server: ScriptedServer
) -> None:
    seen = {"hasCompletedOnboarding": True, "projects": {str(desk.project): {"hasTrustDialogAccepted": True}}}
    (desk.home / ".claude.json").write_text(json.dumps(seen))
    few = {"ANTHROPIC_BASE_URL": server.served.url, "ANTHROPIC_AUTH_TOKEN": server.served.key}
    with terminal(
        client_command("claude"), folder=desk.project, environment=desk.environment({**few, **QUIET})
    ) as screen:
        screen.wait_for("❯")
        screen.type("please say it again")
        screen.wait_for("say it again")
        screen.type("\r")
        screen.wait_for("Again: 6 bytes.")
        eventually(lambda: len(server.turns()) == 2)
        assert screen.end() == 0
    title, turn = sorted(server.turns(2), key=lambda turn: turn.tokens("prompt"))
    assert title.tokens("prompt") < turn.tokens("prompt") / 4
    assert title.session == turn.session
