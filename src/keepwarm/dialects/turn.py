"""What a body asks for, whatever dialect it came in."""

from __future__ import annotations

from dataclasses import dataclass

from keepwarm.chat.messages import Chat
from keepwarm.chat.request import ChatRequest
from keepwarm.core.ids import RequestId, TenantId
from keepwarm.core.sampling import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A parsed body. `model` is as the client wrote it; `unserved` names what was ignored."""

    model: str
    chat: Chat
    sampling: Sampling
    max_output_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    """OpenAI only: a last chunk with the usage of the whole stream."""
    session: str = ""
    """The client's conversation, where the body names one; a header outranks it."""
    unserved: tuple[str, ...] = ()
    """Names of fields, tools and blocks that nothing here acts on, to be counted."""

    def request(
        self, *, request_id: RequestId, tenant: TenantId, session: str, use_cache: bool
    ) -> ChatRequest:
        """The internal request this turn becomes."""
        return ChatRequest(
            request_id=request_id,
            tenant=tenant,
            chat=self.chat,
            sampling=self.sampling,
            max_output_tokens=self.max_output_tokens,
            stop=self.stop,
            session=session or self.session,
            use_cache=use_cache,
        )
