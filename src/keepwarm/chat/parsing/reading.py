"""What a reader of markup works on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from keepwarm.chat.messages import ToolSpec
from keepwarm.chat.parsing.sink import AnswerSink
from keepwarm.chat.parsing.source import Source, Steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One answer: its text, what was found in it, and the tools that were declared, by name."""

    source: Source
    sink: AnswerSink
    tools: Mapping[str, ToolSpec]


ReadBlock = Callable[[Reading], Steps[bool]]
"""Reads what follows a mark that was taken. False: what was taken since `source.mark()`, at first the
mark itself, was no call; it becomes text as it was written, and is counted as malformed. A reader
marks anew after each call that it made, so that only what follows is given back."""
