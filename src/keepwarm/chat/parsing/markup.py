"""A family's markup as a value: which marks open a block, and who reads what follows.

A block's reader is a generator over `Reading`; see `hermes.py` for the model to follow. The text
between blocks, calls without their markup, and giving back what was no call are done here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from keepwarm.chat.events import Delta
from keepwarm.chat.parsing.bare_calls import BARE_CALLS
from keepwarm.chat.parsing.marks import Marks
from keepwarm.chat.parsing.parser import AnswerParser, ParsingContext
from keepwarm.chat.parsing.reading import ReadBlock, Reading
from keepwarm.chat.parsing.sink import AnswerSink
from keepwarm.chat.parsing.source import WHITE_SPACE, Source, Steps
from keepwarm.core.errors import InvariantBroken

__all__ = ["MarkupFormat", "MarkupParser", "ReadBlock", "Reading"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkupFormat:
    """A `ToolFormat` of blocks."""

    name: str
    blocks: Mapping[str, ReadBlock]
    """By the mark that opens them."""
    signs: tuple[str, ...]
    """A template that holds all of these speaks this markup,"""
    other_signs: tuple[str, ...] = ()
    """unless it holds one of these, which are signs of another that shares some."""
    control_texts: frozenset[str] = frozenset()
    frames_text: bool = False
    bare_blocks: Mapping[str, ReadBlock] = field(default_factory=dict)
    """Marks that count only where nothing but white space stands before them on their line, besides
    JSON, which does in every format. What turns out to be no call is text, and not counted."""

    def fits(self, template: str) -> bool:
        is_other = any(sign in template for sign in self.other_signs)
        return not is_other and all(sign in template for sign in self.signs)

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
    bare_blocks = {**BARE_CALLS, **markup.bare_blocks}
    marks = Marks((*markup.blocks, *bare_blocks))
    is_counted = False  # marks that follow each other and make no call count once

    def pass_on(text: str) -> None:
        nonlocal is_counted
        is_counted = is_counted and not text.strip(WHITE_SPACE)
        sink.text(text)

    while mark := (yield from source.pass_until(marks, pass_on)):
        source.mark()
        source.take(len(mark))
        if mark in markup.blocks:
            if (yield from markup.blocks[mark](reading)):
                is_counted = False
            else:
                sink.num_malformed += not is_counted
                is_counted = True
                _give_back(reading, marks)
        elif not sink.line_is_blank or not (yield from bare_blocks[mark](reading)):
            _give_back(reading, marks)
        source.unmark()
    sink.finish()


def _give_back(reading: Reading, marks: Marks) -> None:
    """What was no call: a mark that it begins with is text, and the rest is looked at again, since
    how far a reader came says nothing of what stands there."""
    source = reading.source
    source.put_back()
    num_space = len(source.pending) - len(source.pending.lstrip(WHITE_SPACE))
    mark = next((mark for mark in marks.spellings if source.pending.startswith(mark, num_space)), "")
    if mark:
        reading.sink.text(source.take(num_space + len(mark)))
