"""A family's markup as a value: which marks open a block, and who reads what follows.

A block's reader is a generator over `Reading`; see `hermes.py` for the model to follow. The text
between blocks, calls without their markup, and giving back what was no call are done here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from keepwarm.chat.events import Delta
from keepwarm.chat.messages import ToolSpec
from keepwarm.chat.parsing.marks import Marks
from keepwarm.chat.parsing.parser import AnswerParser, ParsingContext
from keepwarm.chat.parsing.sink import AnswerSink
from keepwarm.chat.parsing.source import Source, Steps
from keepwarm.core.errors import InvariantBroken


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


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkupFormat:
    """A `ToolFormat` of blocks."""

    name: str
    blocks: Mapping[str, ReadBlock]
    """By the mark that opens them."""
    signs: tuple[str, ...]
    """A template that holds all of these speaks this markup."""
    control_texts: frozenset[str] = frozenset()
    frames_text: bool = False
    bare_blocks: Mapping[str, ReadBlock] = field(default_factory=dict)
    """Marks that count only where nothing but white space stands before them on their line. What
    turns out to be no call is text, and not counted."""

    def fits(self, template: str) -> bool:
        return all(sign in template for sign in self.signs)

    def parser(self, context: ParsingContext) -> AnswerParser:
        return MarkupParser(self, context)


class MarkupParser:
    """An `AnswerParser` over one format's blocks."""

    def __init__(self, markup: MarkupFormat, context: ParsingContext) -> None:
        self._reading = Reading(
            source=Source(),
            sink=AnswerSink(context.new_call_id),
            tools={tool.name: tool for tool in context.tools},
        )
        self._steps = read_answer(self._reading, markup)
        next(self._steps)

    @property
    def num_malformed(self) -> int:
        return self._reading.sink.num_malformed

    def feed(self, text: str) -> list[Delta]:
        if text:
            self._reading.source.add(text)
            next(self._steps)
        return self._reading.sink.take()

    def finish(self) -> list[Delta]:
        self._reading.source.end()
        if next(self._steps, True) is None:
            raise InvariantBroken("a parser waits for text after the answer's end")
        return self._reading.sink.take()


def read_answer(reading: Reading, markup: MarkupFormat) -> Steps[None]:
    """The whole of an answer."""
    source, sink = reading.source, reading.sink
    marks = Marks((*markup.blocks, *markup.bare_blocks))
    while mark := (yield from source.pass_until(marks, sink.text)):
        source.mark()
        source.take(len(mark))
        if mark in markup.blocks:
            if not (yield from markup.blocks[mark](reading)):
                sink.malformed()
                sink.text(source.since_mark())
        elif not sink.line_is_blank or not (yield from markup.bare_blocks[mark](reading)):
            sink.text(source.since_mark())
        source.unmark()
    sink.finish()
