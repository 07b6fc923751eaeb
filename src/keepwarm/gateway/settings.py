"""What the gateway is told at start. One place for each option's default, unit and meaning."""

from __future__ import annotations

from dataclasses import dataclass

from keepwarm.gateway.model_names import DEFAULT_ALIASES, ModelNames


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """One gateway."""

    model_name: str
    """The name that the model is served, logged and counted under."""
    aliases: tuple[str, ...] = DEFAULT_ALIASES
    """Patterns of names that mean it too (--alias, --no-default-aliases)."""
    max_body_mb: float = 32.0
    """MB (10^6 bytes) of one request's body (--max-body-mb)."""
    body_wait_s: float = 60.0
    """Longest silence while a body arrives."""
    header_wait_s: float = 5.0
    """A streamed answer's headers go out after this long, accepted or not; later errors are events."""
    ping_interval_s: float = 10.0
    """A stream on which nothing was sent for this long gets a ping."""
    progress_interval_s: float = 120.0
    """A stream without a true event for this long gets one that means nothing. Pings and comments do
    not count with all clients: Claude Code ends such a stream after 600 s, Codex after 300 s."""
    send_stall_s: float = 300.0
    """A client that takes nothing for this long is taken for gone."""
    strip_attribution: bool = True
    """Take the line off by which Claude Code tells its vendor of itself (--no-strip-attribution)."""
    share_prefixes: bool = True
    """Keys of one tenant find what others of it have read; False: each key finds its own alone
    (--no-share-prefixes)."""
    drain_s: float = 30.0
    """At shutdown, running answers get this long to finish."""

    @property
    def names(self) -> ModelNames:
        return ModelNames(served=self.model_name, aliases=self.aliases)

    @property
    def max_body_bytes(self) -> int:
        return int(self.max_body_mb * 1_000_000)
