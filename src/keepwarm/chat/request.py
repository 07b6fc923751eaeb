"""What a gateway asks of a backend, whatever dialect it came in."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from keepwarm.chat.messages import Chat
from keepwarm.core.ids import RequestId, TenantId
from keepwarm.core.sampling import Sampling
from keepwarm.core.session import SessionKey


class ToolChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the answer calls a tool. `name` goes with "named" alone: that tool, and no other."""

    mode: Literal["auto", "none", "any", "named"] = "auto"
    name: str = ""
    parallel: bool = True
    """False: one call an answer at the most."""


ANY_TOOL_OR_NONE = ToolChoice()


class KnownBeginning(msgspec.Struct, frozen=True, kw_only=True):
    """The beginning of a conversation that a backend was sent before and is not sent again."""

    chain: bytes
    """Its name, see `chat.chain`."""
    num_messages: int


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One turn to answer."""

    request_id: RequestId
    tenant: TenantId
    chat: Chat
    known: KnownBeginning | None = None
    """What stands before `chat.messages`; only for a backend that remembers conversations."""
    sampling: Sampling = Sampling()
    max_output_tokens: int | None = None
    """None: as many as the context has room for. More than that is clamped, never refused."""
    stop: tuple[str, ...] = ()
    tool_choice: ToolChoice = ANY_TOOL_OR_NONE
    output_schema: dict[str, Any] | None = None
    """The JSON schema the answer's text must satisfy; {} is any JSON object, None any text."""
    reasoning: bool | None = None
    """Whether the model should think first, where its template lets one say; None: its default."""
    session: str = ""
    """The client's conversation, where it names one."""
    agent: str = ""
    """The subagent of that conversation; "" is its main loop."""
    use_cache: bool = True

    @property
    def session_key(self) -> SessionKey:
        """Whose turn this is, for choosing who answers it."""
        return SessionKey.of(self.session, self.agent)


class CountRequest(msgspec.Struct, frozen=True, kw_only=True):
    """How many tokens would this prompt be?"""

    tenant: TenantId
    chat: Chat


class CountAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """So many, generation prompt included."""

    tokens: int


class ReplicaDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What a ready backend serves."""

    model: str
    max_model_len: int
    """Tokens of prompt and output together."""
    cache_tokens: int
    """That device memory holds, of all ranks together."""
    num_ranks: int = 1
    """Each holds an equal part of them, more or less, and a conversation has to fit into one."""
    trouble: str = ""
    """What is amiss although turns are answered; "" where nothing is."""
