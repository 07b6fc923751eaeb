"""Words without a model: a token is a byte. Goes with the scripted engine."""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Sequence

import msgspec

from keepwarm.backend.words import StopMatch
from keepwarm.chat.events import Delta, LogprobOf, TextDelta, TokenReport
from keepwarm.chat.messages import Chat
from keepwarm.chat.request import ChatRequest
from keepwarm.core.ids import TenantId, TokenIds, token_ids
from keepwarm.core.sampling import TokenLogprobs

_END_OF_TEXT = 4  # ASCII EOT


class ByteWords:
    """Renders `role: text` lines."""

    stop_tokens: tuple[int, ...] = (_END_OF_TEXT,)

    def render(self, tenant: TenantId, chat: Chat) -> TokenIds:
        parts = [f"{message.role}: {message.text()}\n" for message in chat.messages]
        if chat.tools:
            parts.insert(0, msgspec.json.encode(chat.tools).decode())
        return token_ids(list("".join([*parts, "assistant: "]).encode()))

    def read_answer(self, request: ChatRequest) -> ByteAnswerReader:
        return ByteAnswerReader(request.stop, with_logprobs=request.sampling.num_logprobs is not None)

    def remember(self, tenant: TenantId, text: str, tokens: TokenIds) -> None:
        """Bytes need no memory: the same text is the same tokens."""


class ByteAnswerReader:
    """Bytes that are no UTF-8 become U+FFFD."""

    def __init__(self, stops: Sequence[str], *, with_logprobs: bool) -> None:
        self._stops = stops
        self._with_logprobs = with_logprobs
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self._num_tokens = 0
        self._reports: list[TokenReport] = []
        self.stop_match: StopMatch | None = None

    def add(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> Sequence[Delta]:
        safe = ""
        for token, logprob in itertools.zip_longest(tokens, logprobs):
            self._num_tokens += 1
            if self._with_logprobs and logprob is not None:
                self._reports.append(_report(token, logprob))
            self._held += self._decoder.decode(bytes([token]))
            safe += self._release()
            if self.stop_match is not None:
                break
        return self._delta(safe)

    def finish(self) -> Sequence[Delta]:
        return self._delta(self._held + self._decoder.decode(b"", final=True))

    def _release(self) -> str:
        """Text that is out of every stop string's reach."""
        for stop in self._stops:
            if (at := self._held.find(stop)) >= 0:
                self.stop_match = StopMatch(stop_string=stop, num_output_tokens=self._num_tokens)
                return self._held[:at]
        keep = max(
            (n for stop in self._stops for n in range(len(stop)) if self._ends_with(stop[:n])), default=0
        )
        cut = len(self._held) - keep
        safe, self._held = self._held[:cut], self._held[cut:]
        return safe

    def _ends_with(self, beginning: str) -> bool:
        return self._held.endswith(beginning)

    def _delta(self, text: str) -> Sequence[Delta]:
        if not text:
            return ()
        reports, self._reports = tuple(self._reports), []
        return (TextDelta(text=text, logprobs=reports),)


def _report(token: int, logprobs: TokenLogprobs) -> TokenReport:
    return TokenReport(
        chosen=_logprob_of(token, logprobs.logprob),
        top=tuple(_logprob_of(other, logprob) for other, logprob in logprobs.top),
    )


def _logprob_of(token: int, logprob: float) -> LogprobOf:
    raw = bytes([token])
    return LogprobOf(token=raw.decode(errors="replace"), token_bytes=raw, logprob=logprob)
