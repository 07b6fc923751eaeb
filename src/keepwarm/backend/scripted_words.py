"""Words without a model: a token is a byte. Goes with the scripted engine."""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Mapping, Sequence

import msgspec

from keepwarm.chat.events import Delta, LogprobOf, TextDelta, TokenReport
from keepwarm.chat.forced_form import ForcedForms
from keepwarm.chat.messages import Chat
from keepwarm.chat.parsing.answer_markup import markup_of
from keepwarm.chat.request import ChatRequest
from keepwarm.core.grammar import Grammar
from keepwarm.core.hashing import BlockHasher
from keepwarm.core.ids import BlockHash, TenantId, TokenIds, token_ids
from keepwarm.core.sampling import TokenLogprobs

_END_OF_TEXT = 4  # ASCII EOT


class ByteWords:
    """Renders `role: text` lines."""

    stop_tokens: tuple[int, ...] = (_END_OF_TEXT,)
    tool_format = "none"
    _forms = ForcedForms(markup_of("", tool_format="hermes"), template="", control_id=lambda _spelling: None)
    """Carried to the rank as with a model; whether made-up tokens keep to them nobody asks."""

    def memory_bytes(self) -> Mapping[str, int]:
        return {}

    def count_tokens(self, tenant: TenantId, chat: Chat) -> int:
        return len(_render(chat))

    def open_turn(self, request: ChatRequest) -> ByteTurnWords:
        with_logprobs = request.sampling.num_logprobs is not None
        return ByteTurnWords(
            token_ids(list(_render(request.chat))),
            request.stop,
            with_logprobs=with_logprobs,
            grammar=self._forms.form(request, prompt_end=""),
        )


def _render(chat: Chat) -> bytes:
    lines = [f"{message.role}: {message.text()}\n" for message in chat.messages]
    if chat.tools:
        lines.insert(0, msgspec.json.encode(chat.tools).decode() + "\n")
    return "".join([*lines, "assistant: "]).encode(errors="replace")


class ByteTurnWords:
    """Bytes that are no UTF-8 become U+FFFD."""

    is_known = False

    def __init__(
        self,
        prompt: TokenIds,
        stops: Sequence[str],
        *,
        with_logprobs: bool,
        grammar: Grammar | None = None,
    ) -> None:
        self.prompt = prompt
        self.grammar = grammar
        self._stops = stops
        self._with_logprobs = with_logprobs
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self._reports: list[TokenReport] = []
        self.num_output_tokens = 0
        self.num_calls = 0
        self.num_malformed = 0
        self.stop_string: str | None = None

    def block_names(self, hasher: BlockHasher, root: BlockHash) -> bytes:
        return hasher.extend_joined(root, self.prompt)

    def add(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> Sequence[Delta]:
        safe = ""
        for token, logprob in itertools.zip_longest(tokens, logprobs):
            if self.stop_string is not None:
                break
            self.num_output_tokens += 1
            if self._with_logprobs and logprob is not None:
                self._reports.append(_report(token, logprob))
            self._held += self._decoder.decode(bytes([token]))
            safe += self._release()
        return self._delta(safe)

    def finish(self) -> Sequence[Delta]:
        self._held += self._decoder.decode(b"", final=True)
        safe = self._release()
        return self._delta(safe if self.stop_string is not None else safe + self._held)

    def remember(self) -> None:
        """The same text is the same bytes: nothing to keep."""

    def _release(self) -> str:
        """Text that is out of every stop string's reach."""
        for stop in self._stops:
            if (at := self._held.find(stop)) >= 0:
                self.stop_string = stop
                return self._held[:at]
        beginnings = (stop[:length] for stop in self._stops for length in range(1, len(stop)))
        num_held = max((len(part) for part in beginnings if self._held.endswith(part)), default=0)
        cut = len(self._held) - num_held
        safe, self._held = self._held[:cut], self._held[cut:]
        return safe

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
