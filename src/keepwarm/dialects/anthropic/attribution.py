"""The line by which Claude Code tells its vendor of itself, at the head of the system field.

    x-anthropic-billing-header: cc_version=…; cc_entrypoint=…; cc_is_subagent=true;

It means nothing to a model and changes with the first words of a session and after each compaction;
left in, no two sessions would share a prefix, nor a session its own once it was compacted.
"""

from __future__ import annotations

import re

_LINE = re.compile(r"x-anthropic-billing-header:[^\n]*(?:\n|$)")
_SUBAGENT = re.compile(r"\bcc_is_subagent\s*=\s*true\b")


def attribution_of(text: str) -> str:
    """The line at the start of a text of the system field, with its line break; "" without one."""
    match = _LINE.match(text)
    return match[0] if match else ""


def names_subagent(line: str) -> bool:
    """Whether the line says that a subagent asks."""
    return _SUBAGENT.search(line) is not None
