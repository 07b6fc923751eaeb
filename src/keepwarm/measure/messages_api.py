"""One streamed request to `/v1/messages`, timed: what a client sees and when. Knows only the wire."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec

from keepwarm.core.errors import KeepwarmError

TIMEOUTS = httpx.Timeout(connect=10.0, write=30.0, read=300.0, pool=30.0)
"""`read` is the longest silence between two pieces: pings break it, so 300 s means a hang."""

BYPASS_CACHE_HEADER = {"x-keepwarm-cache": "bypass"}
"""The server then reads the whole prompt anew and keeps nothing of it."""

JsonObject = dict[str, Any]


class RequestFailed(KeepwarmError):
    """The server refused or broke off; the message holds its status and its words."""

    code = "request_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedAnswer:
    """One answer as its client got it. `cached_tokens` is part of `prompt_tokens`."""

    text: str
    stop_reason: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    first_token_s: float
    total_s: float

    @property
    def tokens_per_s(self) -> float | None:
        """The rate after the first token; None where there was no second one."""
        writing_s = self.total_s - self.first_token_s
        if self.output_tokens < 2 or writing_s <= 0:
            return None
        return (self.output_tokens - 1) / writing_s


class MessagesApi:
    """Asks one server with one key. The caller owns `client` and its life."""

    def __init__(
        self, client: httpx.AsyncClient, *, key: str, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._client = client
        self._headers = {"x-api-key": key, "anthropic-version": "2023-06-01"}
        self._clock = clock

    async def answer(self, body: JsonObject, *, use_cache: bool = True) -> TimedAnswer:
        """Send `body`, streamed, and read the answer to its end. Raises `RequestFailed`."""
        headers = self._headers if use_cache else self._headers | BYPASS_CACHE_HEADER
        reading = _Reading(started_at=self._clock())
        try:
            async with self._client.stream(
                "POST", "/v1/messages", json=body | {"stream": True}, headers=headers, timeout=TIMEOUTS
            ) as response:
                if response.status_code != httpx.codes.OK:
                    raise RequestFailed(_refusal(response.status_code, await response.aread()))
                async for event in _sse_events(response.aiter_lines()):
                    reading.take(event, now_s=self._clock())
        except httpx.HTTPError as error:
            raise RequestFailed(f"POST /v1/messages: {type(error).__name__}: {error}") from error
        return reading.finish()


@dataclass(slots=True, kw_only=True)
class _Reading:
    """What has arrived of one answer so far."""

    started_at: float
    text: list[str] = field(default_factory=list)
    usage: dict[str, int] = field(default_factory=dict)
    stop_reason: str = ""
    first_token_at: float | None = None
    ended_at: float | None = None

    def take(self, event: JsonObject, *, now_s: float) -> None:
        match event.get("type"):
            case "message_start":
                self._take_usage(event["message"])
            case "content_block_delta":
                self.first_token_at = self.first_token_at or now_s
                self.text.append(event["delta"].get("text", ""))
            case "message_delta":
                self._take_usage(event)
                self.stop_reason = event["delta"].get("stop_reason") or ""
            case "message_stop":
                self.ended_at = now_s
            case "error":
                raise RequestFailed(f"in the stream: {event['error'].get('message')}")
            case _:
                pass  # pings, block edges, and what later versions add

    def _take_usage(self, holder: JsonObject) -> None:
        # The last event that names a count is right: at the start the cache has not been asked yet.
        self.usage |= {name: count for name, count in holder.get("usage", {}).items() if type(count) is int}

    def finish(self) -> TimedAnswer:
        if self.ended_at is None:
            raise RequestFailed("the stream ended without message_stop")
        cached = self.usage.get("cache_read_input_tokens", 0)
        created = self.usage.get("cache_creation_input_tokens", 0)
        return TimedAnswer(
            text="".join(self.text),
            stop_reason=self.stop_reason,
            prompt_tokens=self.usage.get("input_tokens", 0) + cached + created,
            cached_tokens=cached,
            output_tokens=self.usage.get("output_tokens", 0),
            first_token_s=(self.first_token_at or self.ended_at) - self.started_at,
            total_s=self.ended_at - self.started_at,
        )


async def _sse_events(lines: AsyncIterator[str]) -> AsyncIterator[JsonObject]:
    # Every event of this dialect is one data line, and says its type inside too.
    async for line in lines:
        if line.startswith("data:"):
            yield msgspec.json.decode(line[len("data:") :], type=JsonObject)


def _refusal(status: int, body: bytes) -> str:
    try:
        message = msgspec.json.decode(body)["error"]["message"]
    except (msgspec.DecodeError, KeyError, TypeError):
        message = body[:200].decode(errors="replace")
    return f"status {status}: {message}"
