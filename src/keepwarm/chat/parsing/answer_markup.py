"""What one model's answers are marked up with: its tool format, and how it thinks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from keepwarm.chat.messages import ToolSpec
from keepwarm.chat.parsing.parser import AnswerParser, ParsingContext, ToolFormat
from keepwarm.chat.parsing.plain import PlainParser
from keepwarm.chat.parsing.reasoning import ReasoningMarks, ReasoningParser, reasoning_for
from keepwarm.chat.parsing.registry import NONE, choose_tool_format


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerMarkup:
    """Without `tool_format` no calls are read."""

    tool_format: ToolFormat | None
    reasoning: ReasoningMarks
    ends_thoughts: bool
    """The template knows the mark that ends a thought."""

    @property
    def name(self) -> str:
        return self.tool_format.name if self.tool_format else NONE

    def control_texts(self, tools: Sequence[ToolSpec]) -> frozenset[str]:
        """Spellings of special tokens that the parser for these tools must see."""
        tool_format = self._format_for(tools)
        return self.reasoning.control_texts | (tool_format.control_texts if tool_format else frozenset())

    def parser(
        self, tools: Sequence[ToolSpec], *, prompt_end: str, new_call_id: Callable[[], str]
    ) -> AnswerParser:
        """For an answer to a prompt that ends so, control tokens spelled out. Without tools, what
        spells a call is text."""
        context = ParsingContext(
            tools=tools,
            new_call_id=new_call_id,
            begins_in_reasoning=self.reasoning.opened_by(prompt_end),
        )
        tool_format = self._format_for(tools)
        return ReasoningParser(
            self.reasoning,
            context,
            tool_format.parser(context) if tool_format else PlainParser(),
            takes_stray_end=self.ends_thoughts and not self.reasoning.closed_by(prompt_end),
        )

    def _format_for(self, tools: Sequence[ToolSpec]) -> ToolFormat | None:
        if self.tool_format is None or not (tools or self.tool_format.frames_text):
            return None
        return self.tool_format


def markup_of(template: str, *, tool_format: str) -> AnswerMarkup:
    """What a chat template speaks; `tool_format` is the setting. Raises `BadSetting`."""
    reasoning = reasoning_for(template)
    return AnswerMarkup(
        tool_format=choose_tool_format(tool_format, template),
        reasoning=reasoning,
        ends_thoughts=reasoning.close in template,
    )
