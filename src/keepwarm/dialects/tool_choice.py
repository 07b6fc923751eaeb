"""Whether the answer must call a tool, checked against the tools there are."""

from __future__ import annotations

from collections.abc import Sequence

from keepwarm.chat.messages import ToolSpec
from keepwarm.chat.request import ToolChoice
from keepwarm.dialects.body import shown
from keepwarm.dialects.errors import BadField


def settled(choice: ToolChoice, *, field: str, tools: Sequence[ToolSpec], unserved: list[str]) -> ToolChoice:
    """The choice, or a free one where it asks for a tool that was sent and cannot run here.

    Raises `BadField` where it asks for a tool that was not sent.
    """
    names = [tool.name for tool in tools]
    if choice.mode in ("auto", "none") or choice.name in names or (choice.mode == "any" and names):
        return choice
    if any(name.startswith("tool:") for name in unserved):
        unserved.append(field)
        return ToolChoice(parallel=choice.parallel)
    if choice.mode == "any":
        raise BadField(field, "asks for a call of a tool, and there are no tools")
    raise BadField(field, f"{shown(choice.name)} is not one of the tools")
