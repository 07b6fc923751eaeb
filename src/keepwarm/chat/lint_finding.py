"""What the lint can find: a value, and the words for every cause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Severity = Literal["ok", "info", "warning"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`tokens_a_turn` are read again, on average, in the conversation that `what` describes."""

    id: str
    severity: Severity
    what: str
    fix: str = ""
    tokens_a_turn: int = 0


_KEEP_TEXT = "Let the template write every message from that message alone, and only append."

CAUSES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "thoughts-dropped-after-question": (
            "After a new question the template leaves out what the model thought before it",
            "Nothing, where the model was trained so: it answers best with its own template. A template "
            "that keeps old thoughts reads nothing again, at the price of a longer prompt.",
        ),
        "thoughts-dropped-always": (
            "The template leaves out what the model thought in every answer but the one it is writing",
            "Nothing, where the model was trained so. A template that shows `reasoning_content` in the "
            "history keeps the answer as it was generated.",
        ),
        "thoughts-not-replayed": (
            "Thoughts stay only where the client sends them back: such answers cannot be replayed",
            "Use clients that send thoughts back. Answers are replayed where the template begins each with a "
            "header that holds a control token, and ends it with a stop token.",
        ),
        "tools-move": (
            "The template puts the tools before the last question, so that they move with each new one",
            "Write the tools once, before the first message.",
        ),
        "system-moves": (
            "The template puts the system prompt into the last question, so that it moves with each new one",
            "Write the system prompt once, before the first message.",
        ),
        "date": (
            "The template shows a date",
            "Nothing for a server that keeps running: the date is that of its start. To share a cache "
            "between servers or across restarts, take `strftime_now` out of the template.",
        ),
        "numbering": (
            "The template writes numbers into earlier messages that change as the conversation grows",
            _KEEP_TEXT,
        ),
        "whitespace": (
            "The template changes white space in what it wrote before",
            "Trim every message alike, or none; end an answer with a stop token, so that it is replayed.",
        ),
        "last-message-text": (
            "The template adds text to the last message and leaves it out when another one follows",
            _KEEP_TEXT,
        ),
        "header-differs": (
            "An answer in the history begins otherwise than the prompt that invited it",
            "Let the history begin an answer as the invitation does, or end it with a stop token, so that "
            "it is replayed.",
        ),
        "answer-rewritten": (
            "An answer in the history is not, token by token, what the model generated",
            "Let the template end an answer with a stop token, so that it is replayed.",
        ),
        "text-changes": ("The template changes what it wrote before", _KEEP_TEXT),
    }
)
"""What each cause is, and what to do about it."""
