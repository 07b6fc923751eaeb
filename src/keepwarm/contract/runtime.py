"""Serves one `Backend` over HTTP: the routes, the stream, and its life from setup to exit.

    POST /channel  one gateway's turns, for as long as it lives: `chat.wire` messages in both directions
    POST /count    msgpack `CountRequest` → msgpack `CountAnswer`
    GET  /ready    msgpack `ReplicaDescription`, or 503 with why not
    GET  /metrics  Prometheus text
    GET  /events   what becomes of the caches, a JSON object a line, for as long as somebody reads

Errors outside the channel are msgpack `ErrorOnWire`. Knows no model, rank or dialect.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

from keepwarm.chat.request import CountAnswer, CountRequest
from keepwarm.chat.wire import MEDIA_TYPE
from keepwarm.contract.backend import Backend
from keepwarm.contract.channel import Channel
from keepwarm.contract.event_feed import EventFeed, serve_feed
from keepwarm.core.errors import (
    BadRequest,
    BodyTooLarge,
    CallerError,
    InvariantBroken,
    KeepwarmError,
    NotFound,
    NotReady,
    Overloaded,
    to_wire,
)

logger = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
AsgiMessage = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[AsgiMessage]]
Send = Callable[[AsgiMessage], Awaitable[None]]

_MAX_BODY_BYTES = 256 << 20
"""The gateway's own limit is far lower; this one bounds memory if something else calls."""
_MSGPACK = "application/msgpack"
_NDJSON = "application/x-ndjson"
_SHUTTING_DOWN = "the backend is shutting down"
_PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class ClientGone(Exception):
    """The connection closed before the body was complete."""


_encode = msgspec.msgpack.Encoder().encode
_decode_count = msgspec.msgpack.Decoder(CountRequest).decode


class BackendApp:
    """The ASGI app over one backend."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.refusal: str | None = "the model is loading"
        """Why no request is taken, whatever the backend says; None: ask the backend."""
        self._channels: set[Channel] = set()
        self._feeds: set[EventFeed] = set()
        self._is_ending = False

    def end_channels(self) -> None:
        """Each ends with its last turn, at once where there is none. Nobody is told events any more."""
        self._is_ending = True
        for feed in tuple(self._feeds):
            feed.close(_SHUTTING_DOWN)
        for channel in self._channels:
            channel.end_when_idle()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise InvariantBroken(f"ASGI scope {scope['type']} is not served")
        try:
            await self._route(scope, receive, send)
        except ClientGone:
            return
        except KeepwarmError as error:
            await _send_error(send, error)
        except Exception as error:
            logger.exception("%s %s failed", scope["method"], scope["path"])
            await _send_error(send, InvariantBroken(f"the backend failed on {type(error).__name__}"))

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["method"], scope["path"]:
            case "POST", "/channel":
                await self._serve_channel(receive, send)
            case "POST", "/count":
                await self._count(receive, send)
            case "GET", "/ready":
                await self._ready(send)
            case "GET", "/events":
                await self._serve_events(receive, send)
            case "GET", "/metrics":
                await _send_body(send, 200, self._backend.metrics_text().encode(), _PROMETHEUS_TEXT)
            case method, path:
                raise NotFound(f"{method} {path} is no route of a backend")

    async def _serve_channel(self, receive: Receive, send: Send) -> None:
        channel = Channel(self._backend, self._refuse_unless_ready)
        await _send_start(send, 200, MEDIA_TYPE)
        self._channels.add(channel)
        if self._is_ending:
            channel.end_when_idle()
        try:
            await channel.serve(receive, send)
        finally:
            self._channels.discard(channel)

    async def _serve_events(self, receive: Receive, send: Send) -> None:
        feed = self._backend.watch_events()
        self._feeds.add(feed)
        if self._is_ending:
            feed.close(_SHUTTING_DOWN)
        try:
            await _send_start(send, 200, _NDJSON)
            await serve_feed(feed, receive, send)
        finally:
            self._feeds.discard(feed)
            feed.close("the reader left")

    async def _count(self, receive: Receive, send: Send) -> None:
        body = await _read_body(receive)
        try:
            request = _decode_count(body)
        except msgspec.DecodeError as error:
            raise BadRequest(f"count request: {error}") from error
        self._refuse_unless_ready()
        tokens = await self._backend.count_tokens(request.tenant, request.chat)
        await _send_body(send, 200, _encode(CountAnswer(tokens=tokens)), _MSGPACK)

    async def _ready(self, send: Send) -> None:
        self._refuse_unless_ready()
        await _send_body(send, 200, _encode(self._backend.describe()), _MSGPACK)

    def _refuse_unless_ready(self) -> None:
        if self.refusal is not None:
            raise NotReady(self.refusal)
        error = self._backend.refusal()
        if error is not None:
            raise error


def status_of(error: KeepwarmError) -> int:
    """The status a backend answers an error with outside the stream."""
    match error:
        case NotFound():
            return 404
        case BodyTooLarge():
            return 413
        case Overloaded():
            return 429
        case CallerError():
            return 400
        case NotReady():
            return 503
        case _:
            return 500


async def _read_body(receive: Receive) -> bytes:
    """Raises `BodyTooLarge` and `ClientGone`."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body += message.get("body", b"")
        if len(body) > _MAX_BODY_BYTES:
            raise BodyTooLarge(limit_bytes=_MAX_BODY_BYTES)
        if not message.get("more_body", False):
            return bytes(body)


async def _send_error(send: Send, error: KeepwarmError) -> None:
    await _send_body(send, status_of(error), _encode(to_wire(error)), _MSGPACK)


async def _send_body(send: Send, status: int, body: bytes, content_type: str) -> None:
    await _send_start(send, status, content_type, length=len(body))
    await send({"type": "http.response.body", "body": body})


async def _send_start(send: Send, status: int, content_type: str, *, length: int | None = None) -> None:
    headers = [(b"content-type", content_type.encode())]
    if length is not None:
        headers.append((b"content-length", str(length).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
