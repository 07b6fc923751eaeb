"""What the answer to a Responses body must know of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from keepwarm.core.errors import InvariantBroken
from keepwarm.dialects.openai_responses.tools import ToolTable
from keepwarm.dialects.turn import Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseForm:
    """`echo` holds the fields of the response object that repeat the request."""

    echo: dict[str, Any]
    tools: ToolTable
    summarises: bool
    """Thoughts go out as a summary, which is what clients show; else as reasoning text."""
    seals_reasoning: bool
    """Thoughts go out once more in a form that clients send back."""


def form_of(turn: Turn) -> ResponseForm:
    """The form that `parse_turn` left in the turn."""
    if not isinstance(turn.answer_form, ResponseForm):
        raise InvariantBroken("a turn of another dialect is answered as a response")
    return turn.answer_form
