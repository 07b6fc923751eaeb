"""A server that speaks `/v1/messages` and keeps a prefix cache of words, on a clock of its own."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx

BLOCK_SIZE = 4
KEY = "the-key"


class ManualClock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class FakeMessagesServer:
    """Reading a token takes `read_s` seconds, writing one `write_s`. Tokens are words.

    `forgets_turn`: from that request on (counted from 1) the cache is empty.
    `cached_answers_differ`: what a cache must never do.
    `ignores_bypass`, `fails_bypass`, `drops_stream`: other ways to be wrong.
    """

    def __init__(self, clock: ManualClock, *, read_s: float = 0.01, write_s: float = 0.1) -> None:
        self.clock = clock
        self.read_s = read_s
        self.write_s = write_s
        self.forgets_turn: int | None = None
        self.cached_answers_differ = False
        self.ignores_bypass = False
        self.fails_bypass = False
        self.drops_stream = False
        self.bodies: list[dict[str, Any]] = []
        self._known: set[tuple[str, ...]] = set()

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.MockTransport(self._answer), base_url="http://fake")

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        if request.headers.get("x-api-key") != KEY:
            return _refuse(401, "no such key")
        bypass = request.headers.get("x-keepwarm-cache") == "bypass"
        if bypass and self.fails_bypass:
            return _refuse(529, "busy")
        body = json.loads(request.content)
        self.bodies.append(body)
        words = _words_of(body)
        cached = 0 if bypass and not self.ignores_bypass else self._find(words)
        answer = ["fine,", "said", "the", f"model-{len(words)}"]
        if cached and self.cached_answers_differ:
            answer[-1] = "stale"
        if not bypass:
            self._known |= {tuple(words[:end]) for end in range(BLOCK_SIZE, len(words) + 1, BLOCK_SIZE)}
        return httpx.Response(200, stream=_Stream(self._events(len(words), cached, answer)))

    def _find(self, words: list[str]) -> int:
        if self.forgets_turn is not None and len(self.bodies) >= self.forgets_turn:
            return 0
        ends = range(BLOCK_SIZE, len(words), BLOCK_SIZE)
        return max((end for end in ends if tuple(words[:end]) in self._known), default=0)

    async def _events(self, prompt_tokens: int, cached: int, answer: list[str]) -> AsyncIterator[bytes]:
        usage = {"input_tokens": prompt_tokens - cached, "cache_read_input_tokens": cached}
        yield _event("message_start", message={"usage": {"input_tokens": 0, "output_tokens": 0}})
        yield _event("ping")
        self.clock.now_s += self.read_s * (prompt_tokens - cached)
        for word in answer:
            self.clock.now_s += self.write_s
            yield _event("content_block_delta", delta={"type": "text_delta", "text": word + " "})
        if self.drops_stream:
            return
        yield _event(
            "message_delta",
            delta={"stop_reason": "end_turn"},
            usage=usage | {"output_tokens": len(answer), "service_tier": "standard"},
        )
        yield _event("message_stop")


class _Stream(httpx.AsyncByteStream):
    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._pieces:
            yield piece


def _words_of(body: dict[str, Any]) -> list[str]:
    words: list[str] = body["system"].split()
    for message in body["messages"]:
        words += message["content"].split()
    return words


def _refuse(status: int, message: str) -> httpx.Response:
    return httpx.Response(status, json={"type": "error", "error": {"type": "x", "message": message}})


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()
