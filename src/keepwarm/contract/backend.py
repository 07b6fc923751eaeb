"""The class a backend derives from. Knows no transport; `runtime` serves it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator

from keepwarm.chat.events import ChatEvent
from keepwarm.chat.messages import Chat
from keepwarm.chat.request import ChatRequest, ReplicaDescription
from keepwarm.core.errors import BadRequest
from keepwarm.core.ids import TenantId


class Backend(ABC):
    """One replica. Built cheaply; loads in `setup`; lives in one event loop."""

    @abstractmethod
    async def setup(self) -> None:
        """Load. Requests come only after it returned. Raises `SetupError`."""

    @abstractmethod
    def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        """Answer one turn, in the order `keepwarm.chat.events` lays down.

        Closing the iterator (`aclose`) is the client going away: the work stops within one step.
        Errors of our tree may be raised before the first event; the runtime makes them `Failed`.
        """

    async def count_tokens(self, tenant: TenantId, chat: Chat) -> int:
        """Tokens of the prompt this chat would become, generation prompt included."""
        raise BadRequest("this backend cannot count tokens")

    @abstractmethod
    def describe(self) -> ReplicaDescription:
        """What is served. Valid once `setup` returned."""

    def unready_reason(self) -> str | None:
        """Why a request would not be served now, for the person who can act on it; None: it would."""
        return None

    def metrics_text(self) -> str:
        """Prometheus text of this replica's own metrics."""
        return ""

    @abstractmethod
    async def close(self) -> None:
        """End what is running and release everything."""
