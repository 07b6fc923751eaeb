"""One answer: sampled tokens in, deltas out, and the place of a stop string.

    tokens ─Detokenizer→ text ─AnswerParser→ text, thoughts, calls ─StopStrings→ deltas

A stop string is looked for in the text alone: what a model thinks, and the arguments it calls a
tool with, may hold anything.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from keepwarm.chat.answer_parts import AnswerParts
from keepwarm.chat.detokenize import Detokenizer
from keepwarm.chat.events import Delta, LogprobOf, TextDelta, TokenReport
from keepwarm.chat.messages import Part, Text
from keepwarm.chat.parsing.parser import AnswerParser
from keepwarm.chat.parsing.plain import PlainParser
from keepwarm.chat.stops import StopStrings
from keepwarm.chat.tokenizer import Tokenizer
from keepwarm.core.sampling import TokenLogprobs


class AnswerDecoder:
    """Feed it every token of one answer in order, then `flush` it once."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        parser: AnswerParser | None = None,
        shown: Collection[int] = (),
        stop: Sequence[str] = (),
        report_logprobs: bool = False,
    ) -> None:
        """`parser`: without one all is text. `shown`: special tokens that are markup to it.

        Raises `BadRequest` on an empty stop string.
        """
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer, shown=shown)
        self._parser = parser or PlainParser()
        self._stops = StopStrings(stop)
        self._reports_logprobs = report_logprobs
        self._reports: list[TokenReport] = []
        self._follows_markup = False
        self._tokens: list[int] = []
        self._written: list[str] = []
        """The text that the parser got: markup and all."""
        self._num_written = 0
        self._whole_at: list[tuple[int, int]] = [(0, 0)]
        """Characters written, and tokens that they are of, wherever no character is half there."""
        self._stretch: list[str] = []
        """The text sent since the last thought or call,"""
        self._stretch_since = 0
        """and a place in what was written that it is not before."""
        self._parts = AnswerParts()
        self.stop_string: str | None = None
        """The stop string that was found; then no more tokens are looked at."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the answer so far. With a stop string: those to cut after, its own included."""
        return len(self._tokens)

    @property
    def num_calls(self) -> int:
        """Tool calls that were begun."""
        return self._parts.num_calls

    @property
    def num_malformed(self) -> int:
        """Stretches of markup that could not be read."""
        return self._parser.num_malformed

    @property
    def text(self) -> str:
        """All text that was sent."""
        return "".join(part.text for part in self.parts() if isinstance(part, Text))

    def parts(self) -> tuple[Part, ...]:
        """All that was sent, as the parts of a message."""
        return self._parts.all()

    def add(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs] = ()) -> list[Delta]:
        """The deltas these tokens bring. `logprobs`: one a token, where asked for."""
        deltas: list[Delta] = []
        for number, token in enumerate(tokens):
            if self.stop_string is not None:
                break
            self._tokens.append(token)
            if self._reports_logprobs and number < len(logprobs):
                self._reports.append(self._report(token, logprobs[number]))
            num_written = self._num_written
            parsed = self._parse(self._detokenizer.add((token,)))
            if self._reports_logprobs:
                self._drop_reports_of_markup(parsed)
            step = self._watch(parsed)
            for delta in step:
                if not isinstance(delta, TextDelta):
                    self._stretch_since = num_written
            deltas += self._with_reports(step)
            if not self._detokenizer.holds_bytes:
                self._whole_at.append((self._num_written, len(self._tokens)))
        return self._send(deltas, final=self.stop_string is not None)

    def flush(self) -> list[Delta]:
        """What was held back: an unfinished character, the beginning of a stop string or of markup,
        the end of a call that broke off, reports."""
        if self.stop_string is not None:
            return []
        deltas = self._watch([*self._parse(self._detokenizer.flush()), *self._parser.finish()])
        if self.stop_string is None:
            deltas += _text_deltas(self._stops.flush())
        return self._send(self._with_reports(deltas), final=True)

    def replay_tokens(self) -> list[int]:
        """Ids that stand for exactly what was sent: all that were sampled, or where text was kept
        back (a stop string) those before it, a token that reaches into it spelled anew. None at all
        where that place cannot be told."""
        if self.stop_string is None:
            return self._tokens
        text, stretch = "".join(self._written), "".join(self._stretch)
        start = text.find(stretch + self.stop_string, self._stretch_since)
        if start < 0:
            return []
        end = start + len(stretch)
        num_characters, num_tokens = max(entry for entry in self._whole_at if entry[0] <= end)
        rest = text[num_characters:end]
        if not rest:
            return self._tokens[:num_tokens]
        tokenizer = self._tokenizer
        if num_tokens:
            shared = tokenizer.encode_inside(rest)
        else:
            shared = tokenizer.encode(rest, after_control_token=True)
        return [*self._tokens[:num_tokens], *shared.tolist()]

    def _parse(self, text: str) -> list[Delta]:
        if text:
            self._num_written += len(text)
            self._written.append(text)
        return self._parser.feed(text)

    def _watch(self, deltas: Sequence[Delta]) -> list[Delta]:
        """The deltas that may go out. A stop string does not reach over a thought or a call."""
        watched: list[Delta] = []
        for delta in deltas:
            if not isinstance(delta, TextDelta):
                watched += [*_text_deltas(self._stops.flush()), delta]
                continue
            safe, match = self._stops.add(delta.text)
            watched += [delta] if safe == delta.text else _text_deltas(safe)
            if match is not None:
                self.stop_string = match.stop_string
                break
        return watched

    def _drop_reports_of_markup(self, parsed: Sequence[Delta]) -> None:
        """Of the reports that wait when text follows a thought or a call, only the last are its own."""
        for delta in parsed:
            if not isinstance(delta, TextDelta):
                self._follows_markup = True
            elif self._follows_markup:
                self._follows_markup = False
                self._reports = _last_that_spell(delta.text, self._reports)

    def _with_reports(self, deltas: list[Delta]) -> list[Delta]:
        """Reports wait for text to go with; those of markup and thoughts go nowhere."""
        if not self._reports or not deltas:
            return deltas
        reports, self._reports = tuple(self._reports), []
        for number, delta in enumerate(deltas):
            if isinstance(delta, TextDelta):
                deltas[number] = TextDelta(text=delta.text, logprobs=reports)
                break
        return deltas

    def _send(self, deltas: list[Delta], *, final: bool) -> list[Delta]:
        """Neighbouring texts as one. Reports that are left at the end go out alone, after text."""
        if final and self._reports and not self.num_calls:
            deltas.append(TextDelta(text="", logprobs=tuple(self._reports)))
            self._reports = []
        if len(deltas) < 2:
            self._note(deltas)
            return deltas
        sent: list[Delta] = []
        for delta in deltas:
            last = sent[-1] if sent else None
            if isinstance(delta, TextDelta) and isinstance(last, TextDelta):
                sent[-1] = TextDelta(text=last.text + delta.text, logprobs=last.logprobs + delta.logprobs)
            else:
                sent.append(delta)
        self._note(sent)
        return sent

    def _note(self, sent: Sequence[Delta]) -> None:
        self._parts.add(sent)
        for delta in sent:
            if isinstance(delta, TextDelta):
                self._stretch.append(delta.text)
            else:
                self._stretch.clear()

    def _report(self, token: int, logprobs: TokenLogprobs) -> TokenReport:
        top = tuple(self._logprob_of(other, logprob) for other, logprob in logprobs.top)
        return TokenReport(chosen=self._logprob_of(token, logprobs.logprob), top=top)

    def _logprob_of(self, token: int, logprob: float) -> LogprobOf:
        raw = self._tokenizer.token_bytes(token)
        return LogprobOf(token=raw.decode("utf-8", "replace"), token_bytes=raw, logprob=logprob)


def _text_deltas(text: str) -> list[Delta]:
    return [TextDelta(text=text)] if text else []


def _last_that_spell(text: str, reports: Sequence[TokenReport]) -> list[TokenReport]:
    num_bytes, start = len(text.encode()), len(reports)
    while start and num_bytes > 0:
        start -= 1
        num_bytes -= len(reports[start].chosen.token_bytes)
    return list(reports[start:])
