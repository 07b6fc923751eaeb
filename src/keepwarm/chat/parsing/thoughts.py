"""Thoughts between marks of a family's own."""

from __future__ import annotations

from keepwarm.chat.parsing.marks import Marks
from keepwarm.chat.parsing.markup import ReadBlock, Reading
from keepwarm.chat.parsing.source import Steps


def reader_of_thoughts(end: str, *others: str) -> ReadBlock:
    """For a mark that opens thoughts. They reach to `end`, or, where it was left out, to one of the
    other marks, which is not taken, or to the end of the answer."""
    ends, own_end = Marks([end, *others]), Marks([end])

    def read_thoughts(reading: Reading) -> Steps[bool]:
        yield from reading.source.pass_until(ends, reading.sink.reasoning)
        yield from reading.source.accept(own_end)
        return True

    return read_thoughts
