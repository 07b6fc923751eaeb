"""What is known of one request; becomes its log line and its metrics. Never a prompt, never a secret."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from keepwarm.chat.events import Accepted, Admitted, ChatEvent, Failed, Finished, TextDelta
from keepwarm.core.cached_tokens import CachedTokens
from keepwarm.core.errors import InvariantBroken, KeepwarmError
from keepwarm.core.session import NO_SESSION, SessionKey

_LOG = logging.getLogger("keepwarm.gateway")


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """Instants are on the event loop's monotonic clock. None: not known, or not reached."""

    request_id: str
    route: str
    received_at: float
    tenant: str | None = None
    key_id: str | None = None
    ignored_key_header: str | None = None
    """A header whose key is none of ours, while the other one's let in: a leftover of another service."""
    model: str | None = None
    """The served name, whatever was asked for."""
    session: SessionKey = NO_SESSION
    stream: bool = False
    status: int | None = None
    prompt_tokens: int | None = None
    cached: CachedTokens | None = None
    output_tokens: int | None = None
    admitted_at: float | None = None
    first_token_at: float | None = None
    num_known_messages: int = 0
    """So many were not sent to the replica again."""
    outcome: str = "ok"
    """"ok", an error's code, "client_gone", "client_stalled" or "cancelled"."""

    def note(self, event: ChatEvent, now: float) -> None:
        """Learn from an event of the answer that came at `now`."""
        match event:
            case TextDelta() if self.first_token_at is not None:
                pass  # nearly always
            case Accepted():
                self.prompt_tokens = event.prompt_tokens
            case Admitted():
                self.cached = event.cached
                self.admitted_at = now
            case Finished():
                self.prompt_tokens = event.usage.prompt_tokens
                self.cached = event.usage.cached
                self.output_tokens = event.usage.output_tokens
            case Failed():
                pass
            case _:
                if self.first_token_at is None:
                    self.first_token_at = now

    def fields(self, now: float) -> dict[str, str | int | float | bool | None]:
        """The log line's fields, at the request's end."""
        cached = self.cached
        return {
            "request_id": self.request_id,
            "tenant": self.tenant,
            "key_id": self.key_id,
            "ignored_key_header": self.ignored_key_header,
            "session": self.session.session or None,
            "agent": self.session.agent or None,
            "route": self.route,
            "model": self.model,
            "stream": self.stream,
            "status": self.status,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": None if cached is None else cached.total,
            "cached_tokens_l0": None if cached is None else cached.l0,
            "cached_tokens_l1": None if cached is None else cached.l1,
            "cached_tokens_disk": None if cached is None else cached.disk,
            "output_tokens": self.output_tokens,
            "known_messages": self.num_known_messages,
            "queue_ms": self._since_ms(self.admitted_at),
            "first_token_ms": self._since_ms(self.first_token_at),
            "total_ms": self._since_ms(now),
            "outcome": self.outcome,
        }

    def _since_ms(self, instant: float | None) -> float | None:
        return None if instant is None else round((instant - self.received_at) * 1000, 1)


def log_if_ours(error: KeepwarmError, request_id: str) -> None:
    """Log what the client is not told: it gets only the request's id."""
    if isinstance(error, InvariantBroken):
        _LOG.error("request %s failed: %s", request_id, error, exc_info=error)
