"""The seam between an answer's text and what it means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from keepwarm.chat.events import Delta
from keepwarm.chat.messages import ToolSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsingContext:
    """What one answer's parser may know of its turn."""

    tools: Sequence[ToolSpec]
    new_call_id: Callable[[], str]
    """A fresh id for each call."""
    begins_in_reasoning: bool = False
    """The prompt itself opened the reasoning: the answer's first word is a thought."""


class AnswerParser(Protocol):
    """One answer. Its text comes in order, cut anywhere; control tokens that are markup come as
    their spelling. The deltas are the same however it was cut, joined."""

    def feed(self, text: str) -> list[Delta]:
        """What is certain now. Arguments go out as they come; joined they are always valid JSON."""

    def finish(self) -> list[Delta]:
        """The rest: an unfinished call is closed, or was no call and is text. Called once."""

    @property
    def num_malformed(self) -> int:
        """Stretches of markup that could not be read as what they seemed to be."""


class ToolFormat(Protocol):
    """One family's markup."""

    @property
    def name(self) -> str:
        """For `--tool-format`, the log and metrics."""

    @property
    def control_texts(self) -> frozenset[str]:
        """Spellings that are markup even where the tokenizer calls them special: those tokens reach
        the parser as text, all other special ones are left out."""

    @property
    def frames_text(self) -> bool:
        """Whether text and thoughts stand in the markup too, so that every answer is read by it, also
        where no tool was declared."""

    def fits(self, template: str) -> bool:
        """Whether a chat template (its Jinja source) speaks this markup."""

    def parser(self, context: ParsingContext) -> AnswerParser:
        """For one answer."""
