"""What a native backend asks of `chat`: a conversation into tokens, tokens into an answer.

A seam, so that everything around it runs without a tokenizer's files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from keepwarm.chat.events import Delta
from keepwarm.chat.messages import Chat
from keepwarm.chat.request import ChatRequest
from keepwarm.core.ids import TenantId, TokenIds
from keepwarm.core.sampling import TokenLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class StopMatch:
    """A stop string came after `num_output_tokens` tokens, the last of which completed it."""

    stop_string: str
    num_output_tokens: int


class AnswerReader(Protocol):
    """One answer's tokens, in order, into what its client is sent. Lives on the event loop."""

    def add(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> Sequence[Delta]:
        """What may be sent now: whole characters that no stop string can begin with."""

    @property
    def stop_match(self) -> StopMatch | None:
        """Set by the `add` that met a stop string; nothing is added afterwards."""

    def finish(self) -> Sequence[Delta]:
        """What was held back. Called once, where no stop string matched."""


class Words(Protocol):
    """One model's tokenizer and template. `render` and `remember` are called from one thread."""

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """Ids that end an answer."""

    def render(self, tenant: TenantId, chat: Chat) -> TokenIds:
        """The prompt, generation prompt included. Raises `BadRequest`."""

    def read_answer(self, request: ChatRequest) -> AnswerReader:
        """For the answer to this request."""

    def remember(self, tenant: TenantId, text: str, tokens: TokenIds) -> None:
        """These tokens were generated for an answer of this text: the same ids next time."""
