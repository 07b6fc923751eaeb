"""The set-up blocks of docs/clients.md, filled in: what a user copies is what the tests run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from tests.clients.scripted_server import ScriptedServer

_PAGE = Path(__file__).parents[2] / "docs" / "clients.md"
_CONTEXT = "131072"


def block(section: str, server: ScriptedServer) -> str:
    """The first block under the heading, for this server."""
    text = _PAGE.read_text().split(f"\n## {section}\n", 1)[1]
    found = re.search(r"```\w+\n(.*?)```", text, re.DOTALL)
    assert found, f"no block under {section!r} in {_PAGE}"
    served = server.served
    values = {
        "URL": served.url,
        "KEY": served.key,
        "MODEL": served.model,
        _CONTEXT: str(served.max_context_tokens),
    }
    return re.sub(rf"\b(URL|KEY|MODEL|{_CONTEXT})\b", lambda match: values[match[1]], found[1])


def variables(section: str, server: ScriptedServer) -> dict[str, str]:
    """The exports of the block."""
    lines = [shlex.split(line) for line in block(section, server).splitlines()]
    return dict(words[1].split("=", 1) for words in lines if words[:1] == ["export"])
