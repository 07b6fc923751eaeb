"""What a body asks for, whatever dialect it came in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from keepwarm.chat.messages import Chat, ToolSpec
from keepwarm.chat.request import ANY_TOOL_OR_NONE, ChatRequest, KnownBeginning, ToolChoice
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
    tool_choice: ToolChoice = ANY_TOOL_OR_NONE
    output_schema: dict[str, Any] | None = None
    reasoning: bool | None = None
    session: str = ""
    """The client's conversation, where the body names one; a header outranks it."""
    is_subagent: bool = False
    """The body says that a subagent asks."""
    unserved: tuple[str, ...] = ()
    """Names of fields, tools and blocks that nothing here acts on, to be counted."""
    normalised: tuple[str, ...] = ()
    """Names of what was taken off the conversation because it means nothing, to be counted."""
    num_lead_messages: int = 0
    """So many of the chat's messages stand outside the body's list of messages."""
    deferred_tools: tuple[ToolSpec, ...] = ()
    """Those that a message may refer to by name: what it says depends on them."""
    unknown_references: frozenset[str] = frozenset()
    """Names that messages refer to and that none of them has."""
    may_be_shortened: bool = True
    """Reading the end of the list by itself says as much as reading it all."""
    answer_form: object = None
    """What the dialect itself wants to know again when it words the answer; nobody else reads it."""

    def request(
        self,
        *,
        request_id: RequestId,
        tenant: TenantId,
        session: str,
        agent: str,
        use_cache: bool,
        known: KnownBeginning | None = None,
    ) -> ChatRequest:
        """The internal request this turn becomes."""
        return ChatRequest(
            request_id=request_id,
            tenant=tenant,
            chat=self.chat,
            known=known,
            sampling=self.sampling,
            max_output_tokens=self.max_output_tokens,
            stop=self.stop,
            tool_choice=self.tool_choice,
            output_schema=self.output_schema,
            reasoning=self.reasoning,
            session=session or self.session,
            agent=agent or ("subagent" if self.is_subagent else ""),
            use_cache=use_cache,
        )
