"""The one internal request, gateway to backend, whatever dialect it came in."""

from __future__ import annotations

import msgspec

from keepwarm.chat.messages import Chat
from keepwarm.core.ids import RequestId, TenantId
from keepwarm.core.sampling import Sampling


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One turn to answer."""

    request_id: RequestId
    tenant: TenantId
    chat: Chat
    sampling: Sampling = Sampling()
    max_output_tokens: int | None = None
    """None: as many as the context has room for. More than that is clamped, never refused."""
    stop: tuple[str, ...] = ()
    session: str = ""
    """The client's conversation, where it names one."""
    use_cache: bool = True


class ReplicaDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What a ready backend serves."""

    model: str
    max_model_len: int
    """Tokens of prompt and output together."""
    cache_tokens: int
    accepts_images: bool = False
