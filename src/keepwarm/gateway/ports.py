"""What the gateway needs from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from keepwarm.chat.events import ChatEvent
from keepwarm.chat.messages import Chat
from keepwarm.chat.request import ChatRequest, ReplicaDescription
from keepwarm.core.errors import NotReady
from keepwarm.core.ids import TenantId
from keepwarm.core.principal import Principal
from keepwarm.core.session import SessionKey


class KeyVerifier(Protocol):
    """Says whose key a secret is."""

    async def verify(self, secret: str) -> Principal | None:
        """None: not a key of ours, or a revoked one. Bounded in time; never logs the secret."""


class AnswerClosed(Exception):
    """`Answer.close` was called while, or before, somebody read it."""


class Answer(Protocol):
    """One turn being answered. One task reads it; any may close it."""

    async def next(self, wait_s: float) -> Sequence[ChatEvent]:
        """The events that came since, in order; empty when none came within `wait_s`.

        The last of all is `Finished` or `Failed`; nothing is read after it.
        Raises `AnswerClosed`; `NotReady` when the replica is not there to be asked, `ReplicaLost`
        when it went away before the end.
        """

    def close(self) -> None:
        """The reader is gone: the work stops at once. May be called again, and after the end."""


class Replica(Protocol):
    """One backend process."""

    def chat(self, request: ChatRequest) -> Answer:
        """Begin a turn. Every answer must be closed. Errors come from `Answer.next`."""

    async def count_tokens(self, tenant: TenantId, chat: Chat) -> int:
        """Tokens of the prompt this chat would become. Raises `BadRequest`, `NotReady`, `ReplicaLost`."""

    async def describe(self) -> ReplicaDescription:
        """What is served. Raises `NotReady`, `ReplicaLost`."""

    async def metrics_text(self) -> str:
        """Prometheus text of its own metrics. Raises `NotReady`, `ReplicaLost`."""


class ReplicaDirectory(Protocol):
    """Which replicas there are."""

    def choose(self, session: SessionKey) -> Replica:
        """The replica for a turn of this session, where the client names one. Raises `NotReady`."""

    def replicas(self) -> Sequence[Replica]:
        """All of them, ready or not."""

    def trouble(self) -> NotReady | None:
        """Why no replica takes a turn, as far as is known without asking them; `Degraded` where none
        will until somebody has mended it. None: ask them."""
