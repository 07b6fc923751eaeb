"""What a backend says about one request, in order:

    Accepted  Admitted  (TextDelta | ReasoningDelta | ToolCall…)*  (Finished | Failed)

Exactly one of `Finished` and `Failed` ends it; nothing follows. `Failed` may come first.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from keepwarm.core.cached_tokens import CachedTokens
from keepwarm.core.errors import ErrorOnWire


class Accepted(msgspec.Struct, frozen=True, kw_only=True, tag="accepted"):
    """The prompt is tokenised and fits the context."""

    prompt_tokens: int
    is_known: bool = False
    """The next turn may leave this conversation out (`ChatRequest.known`)."""


class Admitted(msgspec.Struct, frozen=True, kw_only=True, tag="admitted"):
    """The turn got its memory and is being read; this much of the prompt was cached."""

    cached_tokens: int
    host_tokens: int = 0
    """Of those, copied up from host memory."""
    disk_tokens: int = 0
    """Of those in host memory, brought there from disk."""

    @property
    def cached(self) -> CachedTokens:
        """The cached ones by tier."""
        return CachedTokens.of(cached=self.cached_tokens, host=self.host_tokens, disk=self.disk_tokens)


class LogprobOf(msgspec.Struct, frozen=True, kw_only=True):
    """A token's text and bytes, and its natural log probability."""

    token: str
    token_bytes: bytes
    logprob: float


class TokenReport(msgspec.Struct, frozen=True, kw_only=True):
    """One sampled token and the most likely ones at its place."""

    chosen: LogprobOf
    top: tuple[LogprobOf, ...] = ()


class TextDelta(msgspec.Struct, frozen=True, kw_only=True, tag="text"):
    """More of the answer: whole characters only. `logprobs` where they were asked for."""

    text: str
    logprobs: tuple[TokenReport, ...] = ()


class ReasoningDelta(msgspec.Struct, frozen=True, kw_only=True, tag="reasoning"):
    """More of what the model thinks."""

    text: str


class ToolCallStart(msgspec.Struct, frozen=True, kw_only=True, tag="tool_start"):
    """The model calls a tool; its arguments follow."""

    id: str
    name: str


class ToolCallArguments(msgspec.Struct, frozen=True, kw_only=True, tag="tool_arguments"):
    """More of the open call's arguments: joined, always valid JSON."""

    json: str


class ToolCallEnd(msgspec.Struct, frozen=True, kw_only=True, tag="tool_end"):
    """The open call is complete."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of one request. `cached_tokens` is part of `prompt_tokens`, `reasoning_tokens` of
    `output_tokens`."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int = 0
    host_cached_tokens: int = 0
    """Of the cached ones, copied up from host memory."""
    disk_cached_tokens: int = 0
    """Of those in host memory, brought there from disk."""

    @property
    def cached(self) -> CachedTokens:
        """The cached ones by tier."""
        return CachedTokens.of(
            cached=self.cached_tokens, host=self.host_cached_tokens, disk=self.disk_cached_tokens
        )


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds from the backend's receipt of the request, on its monotonic clock."""

    admitted_s: float
    first_token_s: float | None
    total_s: float


StopReason = Literal["end", "stop_string", "max_tokens", "context_full", "tool_use"]


class Finished(msgspec.Struct, frozen=True, kw_only=True, tag="finished"):
    """The answer is complete."""

    reason: StopReason
    stop_string: str | None = None
    usage: Usage
    timings: Timings


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The answer will never be complete."""

    error: ErrorOnWire


Delta = TextDelta | ReasoningDelta | ToolCallStart | ToolCallArguments | ToolCallEnd
Terminal = Finished | Failed
ChatEvent = Accepted | Admitted | Delta | Terminal
