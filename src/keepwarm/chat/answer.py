"""One answer: sampled tokens in, text deltas out, and the place of a stop string.

Knows nothing of tool calls or reasoning; they are text here.
"""

from __future__ import annotations

from collections.abc import Sequence

from keepwarm.chat.detokenize import Detokenizer
from keepwarm.chat.events import LogprobOf, TextDelta, TokenReport
from keepwarm.chat.stops import StopStrings
from keepwarm.chat.tokenizer import Tokenizer
from keepwarm.core.sampling import TokenLogprobs


class AnswerDecoder:
    """Feed it every token of one answer in order, then `flush` it once."""

    def __init__(
        self, tokenizer: Tokenizer, *, stop: Sequence[str] = (), report_logprobs: bool = False
    ) -> None:
        """Raises `BadRequest` on an empty stop string."""
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopStrings(stop)
        self._reports_logprobs = report_logprobs
        self._reports: list[TokenReport] = []
        self._tokens: list[int] = []
        self._whole_at: list[tuple[int, int]] = [(0, 0)]
        self._num_decoded = 0
        self._sent: list[str] = []
        self.stop_string: str | None = None
        """The stop string that was found; then no more tokens are looked at."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the answer so far. With a stop string: those to cut after, its own included."""
        return len(self._tokens)

    @property
    def text(self) -> str:
        """All that was sent."""
        return "".join(self._sent)

    def add(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs] = ()) -> list[TextDelta]:
        """The deltas these tokens bring, none or one. `logprobs`: one a token, where asked for."""
        pieces: list[str] = []
        for number, token in enumerate(tokens):
            if self.stop_string is not None:
                break
            self._tokens.append(token)
            if self._reports_logprobs and number < len(logprobs):
                self._reports.append(self._report(token, logprobs[number]))
            pieces.append(self._watch(self._detokenizer.add((token,))))
            if not self._detokenizer.holds_bytes:
                self._whole_at.append((self._num_decoded, len(self._tokens)))
        return self._send("".join(pieces), final=self.stop_string is not None)

    def flush(self) -> list[TextDelta]:
        """What was held back: an unfinished character, the beginning of a stop string, reports."""
        if self.stop_string is not None:
            return []
        rest = self._watch(self._detokenizer.flush())
        if self.stop_string is None:
            rest += self._stops.flush()
        return self._send(rest, final=True)

    def replay_tokens(self) -> list[int]:
        """Ids whose text is exactly what was sent: all that were sampled, or where text was kept
        back (a stop string) those before it, a token that reaches into it spelled anew."""
        text = self.text
        if len(text) == self._num_decoded and not self._detokenizer.holds_bytes:
            return self._tokens
        num_characters, num_tokens = max(entry for entry in self._whole_at if entry[0] <= len(text))
        rest = text[num_characters:]
        if not rest:
            return self._tokens[:num_tokens]
        tokenizer = self._tokenizer
        if num_tokens:
            shared = tokenizer.encode_inside(rest)
        else:
            shared = tokenizer.encode(rest, after_control_token=True)
        return [*self._tokens[:num_tokens], *shared.tolist()]

    def _watch(self, text: str) -> str:
        """The part of the text that may go out."""
        self._num_decoded += len(text)
        safe, match = self._stops.add(text)
        if match is not None:
            self.stop_string = match.stop_string
        return safe

    def _send(self, text: str, *, final: bool) -> list[TextDelta]:
        """Reports wait for text to go with, so that none goes out alone but the last."""
        if not text and not (final and self._reports):
            return []
        reports, self._reports = tuple(self._reports), []
        self._sent.append(text)
        return [TextDelta(text=text, logprobs=reports)]

    def _report(self, token: int, logprobs: TokenLogprobs) -> TokenReport:
        top = tuple(self._logprob_of(other, logprob) for other, logprob in logprobs.top)
        return TokenReport(chosen=self._logprob_of(token, logprobs.logprob), top=top)

    def _logprob_of(self, token: int, logprob: float) -> LogprobOf:
        raw = self._tokenizer.token_bytes(token)
        return LogprobOf(token=raw.decode("utf-8", "replace"), token_bytes=raw, logprob=logprob)
