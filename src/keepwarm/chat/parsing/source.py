"""An answer's text as it comes, for readers that are written as if all of it were there.

A reader is a generator: where it needs text that has not come it yields, and is resumed when there
is more. Every wait ends, at the latest at the end of the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

from keepwarm.chat.parsing.held_space import WHITE_SPACE
from keepwarm.chat.parsing.marks import Marks

__all__ = ["WHITE_SPACE", "Source", "Steps"]

_Result = TypeVar("_Result")
Steps = Generator[None, None, _Result]
"""A reader's work: `result = yield from …`."""


class Source:
    """One answer's text. What is taken since `mark` is kept, to be given back as it was written."""

    def __init__(self) -> None:
        self.pending = ""
        """What has come and was not taken."""
        self.has_ended = False
        self._taken: list[str] | None = None

    def add(self, text: str) -> None:
        self.pending += text

    def end(self) -> None:
        """No text follows."""
        self.has_ended = True

    def mark(self) -> None:
        """Keep what is taken from here on."""
        self._taken = []

    def unmark(self) -> None:
        """What was taken is not needed again."""
        self._taken = None

    def since_mark(self) -> str:
        """What was taken since, as written; ends the keeping."""
        taken, self._taken = self._taken or [], None
        return "".join(taken)

    def put_back(self) -> None:
        """What was taken since the mark is pending again; ends the keeping."""
        self.pending = self.since_mark() + self.pending

    def take(self, num_characters: int) -> str:
        """The next characters that are pending."""
        taken, self.pending = self.pending[:num_characters], self.pending[num_characters:]
        if self._taken is not None:
            self._taken.append(taken)
        return taken

    def untake(self, text: str) -> None:
        """This, the last that was taken, is pending again."""
        self.pending = text + self.pending
        if self._taken is not None:
            self._taken = ["".join(self._taken).removesuffix(text)]

    def more(self) -> Steps[bool]:
        """Waits for text beyond what is pending; False: there is none."""
        num_known = len(self.pending)
        while len(self.pending) == num_known and not self.has_ended:
            yield
        return len(self.pending) > num_known

    def next(self) -> Steps[str]:
        """The next character, left where it is; "" at the end."""
        if not self.pending:
            yield from self.more()
        return self.pending[:1]

    def skip(self, characters: str = WHITE_SPACE) -> Steps[str]:
        """Takes all of these, and tells the character that follows; "" at the end."""
        while True:
            self.take(len(self.pending) - len(self.pending.lstrip(characters)))
            if self.pending or not (yield from self.more()):
                return self.pending[:1]

    def peek(self, marks: Marks) -> Steps[str]:
        """The longest of the marks that comes next, left where it is; "" where none does."""
        while marks.begin_with(self.pending) and (yield from self.more()):
            pass
        return next((mark for mark in marks.spellings if self.pending.startswith(mark)), "")

    def accept(self, marks: Marks) -> Steps[str]:
        """The same, taken."""
        mark = yield from self.peek(marks)
        return self.take(len(mark))

    def pass_until(self, marks: Marks, write: Callable[[str], object]) -> Steps[str]:
        """Takes what stands before the next mark and writes it as it comes. Tells the mark, which
        is not taken; "" at the end."""
        while True:
            num_before, mark = marks.split(self.pending, is_last=self.has_ended)
            if num_before:
                write(self.take(num_before))
            if mark or self.has_ended:
                return mark
            yield from self.more()

    def read_until(self, marks: Marks, *, limit: int) -> Steps[tuple[str, str]]:
        """What stands before the next mark, and the mark, which is not taken. Where none comes
        after `limit` characters at most, it takes so many, and the mark is ""."""
        read: list[str] = []
        num_left = limit
        while True:
            num_before, mark = marks.split(self.pending, is_last=self.has_ended)
            read.append(self.take(min(num_before, num_left)))
            if num_before > num_left:
                return "".join(read), ""
            if mark or self.has_ended:
                return "".join(read), mark
            num_left -= num_before
            yield from self.more()
