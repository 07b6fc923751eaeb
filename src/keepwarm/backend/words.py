"""What a native backend asks of `chat`: a conversation into tokens, tokens into an answer.

A seam, so that everything around it runs without a tokenizer's files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from keepwarm.chat.events import Delta
from keepwarm.chat.messages import Chat
from keepwarm.chat.request import ChatRequest
from keepwarm.core.grammar import Grammar
from keepwarm.core.hashing import BlockHasher
from keepwarm.core.ids import BlockHash, TenantId, TokenIds
from keepwarm.core.sampling import TokenLogprobs


class TurnWords(Protocol):
    """One turn: its prompt, then the tokens of its answer in order."""

    @property
    def prompt(self) -> TokenIds:
        """Generation prompt included."""

    @property
    def is_known(self) -> bool:
        """The next turn may leave this conversation out."""

    def block_names(self, hasher: BlockHasher, root: BlockHash) -> bytes:
        """Names of the prompt's full blocks, end to end."""

    @property
    def grammar(self) -> Grammar | None:
        """The form that its caller forced on the answer."""

    def add(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> Sequence[Delta]:
        """What may be sent now: whole characters that neither a stop string nor markup can begin
        with."""

    @property
    def stop_string(self) -> str | None:
        """The one that was met; tokens added afterwards are ignored."""

    @property
    def num_output_tokens(self) -> int:
        """Tokens of the answer so far, up to and with the one that completed a stop string."""

    @property
    def num_calls(self) -> int:
        """Tool calls that the answer began."""

    @property
    def num_malformed(self) -> int:
        """Stretches of tool or reasoning markup that could not be read as what they seemed to be."""

    def finish(self) -> Sequence[Delta]:
        """What was held back. Called once, where the answer ended by itself."""

    def remember(self) -> None:
        """Keep the ids of what was sent, so that the same ids stand for it when it comes back.

        Called once, last; also for an answer that was cut or whose client went away.
        """


class Words(Protocol):
    """One model's tokenizer and template. Threads share it."""

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """Ids that end an answer."""

    @property
    def tool_format(self) -> str:
        """The name of the markup that calls are read in, for the metrics."""

    def memory_bytes(self) -> Mapping[str, int]:
        """Host memory held for conversations, by what it holds."""

    def count_tokens(self, tenant: TenantId, chat: Chat) -> int:
        """Of the prompt, generation prompt included. Raises `BadRequest`."""

    def open_turn(self, request: ChatRequest) -> TurnWords:
        """Renders and tokenises: pure CPU, for a thread. Raises `BadRequest`, `UnknownConversation`."""
