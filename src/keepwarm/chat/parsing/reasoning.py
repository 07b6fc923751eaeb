"""What a model thinks, apart from what it says: `<think>…</think>` and its other spellings.

Wraps any tool format: what stands inside the marks is reasoning whatever it spells. An answer may
begin with a thought, or inside one where the prompt opened it; a thought is not looked for later,
since by then the mark is something the model talks about. One that ends and never began cannot be
told from text before its end: the text is out, and the mark is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from keepwarm.chat.events import Delta, ReasoningDelta, ToolCallStart
from keepwarm.chat.parsing.held_space import HeldSpace
from keepwarm.chat.parsing.marks import Marks
from keepwarm.chat.parsing.parser import AnswerParser, ParsingContext
from keepwarm.chat.parsing.source import Source, Steps
from keepwarm.core.errors import InvariantBroken


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningMarks:
    """How one family opens and closes a thought."""

    open: str
    close: str

    @property
    def control_texts(self) -> frozenset[str]:
        return frozenset({self.open, self.close})

    def opened_by(self, prompt_end: str) -> bool:
        """Whether a prompt that ends so has begun the thought."""
        return prompt_end.rstrip().endswith(self.open)

    def closed_by(self, prompt_end: str) -> bool:
        """Whether it has ended one: the answer is not to think."""
        return prompt_end.rstrip().endswith(self.close)


_NOTHING = Marks([])

THINK = ReasoningMarks(open="<think>", close="</think>")

FAMILIES = (
    ReasoningMarks(open="[THINK]", close="[/THINK]"),  # Mistral
    ReasoningMarks(open="<|START_THINKING|>", close="<|END_THINKING|>"),  # Cohere
    ReasoningMarks(open="<seed:think>", close="</seed:think>"),  # Seed-OSS
    ReasoningMarks(open="◁think▷", close="◁/think▷"),  # Kimi
    ReasoningMarks(open="<thought>", close="</thought>"),  # EXAONE
    ReasoningMarks(open="<|think_start|>", close="<|think_end|>"),  # MiMo's and others' tokens
    THINK,  # DeepSeek, Qwen, GLM, MiniMax, Nemotron, …
)


def reasoning_for(template: str) -> ReasoningMarks:
    """What a template speaks; `<think>` where it speaks of no thought."""
    return next((marks for marks in FAMILIES if marks.close in template or marks.open in template), THINK)


class ReasoningParser:
    """An `AnswerParser`: thoughts, and what `inner` makes of the rest."""

    def __init__(
        self, marks: ReasoningMarks, context: ParsingContext, inner: AnswerParser, *, takes_stray_end: bool
    ) -> None:
        """`takes_stray_end`: the template knows the closing mark, so that one which closes nothing
        is markup even so."""
        self._marks = marks
        self._inner = inner
        self._source = Source()
        self._deltas: list[Delta] = []
        self._takes_stray_end = takes_stray_end
        self._has_called = False
        self._num_malformed = 0
        self._steps = self._read(context.begins_in_reasoning)
        next(self._steps)

    @property
    def num_malformed(self) -> int:
        return self._num_malformed + self._inner.num_malformed

    def feed(self, text: str) -> list[Delta]:
        if text:
            self._source.add(text)
            next(self._steps)
        return self._take()

    def finish(self) -> list[Delta]:
        self._source.end()
        if next(self._steps, True) is None:
            raise InvariantBroken("a parser waits for text after the answer's end")
        return [*self._take(), *self._inner.finish()]

    def _read(self, begins_in_reasoning: bool) -> Steps[None]:
        source = self._source
        opening, closing = Marks([self._marks.open]), Marks([self._marks.close])
        if begins_in_reasoning:
            yield from self._read_thought(opening, closing)
        has_thought = begins_in_reasoning
        source.mark()
        while (yield from self._begins_thought(opening)):
            yield from self._read_thought(_NOTHING, closing)
            has_thought = True
        if has_thought:
            source.unmark()
        else:
            source.put_back()
            if self._takes_stray_end:
                yield from self._read_to_stray_end(closing)
        yield from source.pass_until(_NOTHING, self._pass_on)

    def _begins_thought(self, opening: Marks) -> Steps[bool]:
        yield from self._source.skip()
        return bool((yield from self._source.accept(opening)))

    def _read_thought(self, opening: Marks, closing: Marks) -> Steps[None]:
        """Up to and with its closing mark. Some models open what the prompt has opened already."""
        source, space = self._source, HeldSpace()
        yield from source.skip()
        if (yield from source.accept(opening)):
            yield from source.skip()
        yield from source.pass_until(closing, lambda text: self._think(space.add(text)))
        yield from source.accept(closing)

    def _read_to_stray_end(self, closing: Marks) -> Steps[None]:
        source = self._source
        if (yield from source.pass_until(closing, self._pass_on)) and not self._has_called:
            yield from source.accept(closing)
            yield from source.skip()
            self._num_malformed += 1

    def _think(self, text: str) -> None:
        if text:
            self._deltas.append(ReasoningDelta(text=text))

    def _pass_on(self, text: str) -> None:
        deltas = self._inner.feed(text)
        for delta in deltas:
            self._has_called |= isinstance(delta, ToolCallStart)
        self._deltas += deltas

    def _take(self) -> list[Delta]:
        deltas, self._deltas = self._deltas, []
        return deltas
