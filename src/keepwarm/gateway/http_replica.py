"""A replica behind the contract runtime's HTTP over a Unix socket."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from keepwarm.chat.events import ChatEvent, Failed, Finished
from keepwarm.chat.messages import Chat
from keepwarm.chat.request import ChatRequest, ReplicaDescription
from keepwarm.chat.wire import MEDIA_TYPE, EventDecoder, encode_request
from keepwarm.core.errors import (
    BadRequest,
    ErrorOnWire,
    InvariantBroken,
    KeepwarmError,
    ReplicaLost,
    from_wire,
)
from keepwarm.core.ids import TenantId
from keepwarm.gateway.http_connection import HttpConnection, connect, request_bytes
from keepwarm.gateway.ports import AnswerClosed

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaTimeouts:
    """Longest waits, in seconds."""

    connect_s: float = 2.0
    silence_s: float = 900.0
    """A turn about which the backend says nothing, queueing and reading included."""
    count_s: float = 30.0
    describe_s: float = 2.0
    metrics_s: float = 2.0


class CountRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /count`."""

    tenant: TenantId
    chat: Chat


class CountReply(msgspec.Struct, frozen=True, kw_only=True):
    """Its answer."""

    tokens: int


_RECHECK_S = 1.0
_encoder = msgspec.msgpack.Encoder()
_count_decoder = msgspec.msgpack.Decoder(CountReply)
_description_decoder = msgspec.msgpack.Decoder(ReplicaDescription)
_error_decoder = msgspec.msgpack.Decoder(ErrorOnWire)


class HttpReplica:
    """One backend process, by its socket."""

    def __init__(self, socket_path: str, timeouts: ReplicaTimeouts | None = None) -> None:
        self._socket_path = socket_path
        self._timeouts = timeouts or ReplicaTimeouts()

    def chat(self, request: ChatRequest) -> HttpAnswer:
        return HttpAnswer(self._socket_path, self._timeouts, request)

    async def count_tokens(self, tenant: TenantId, chat: Chat) -> int:
        body = _encoded(CountRequest(tenant=tenant, chat=chat))
        reply = await self._exchange("POST", "/count", body, self._timeouts.count_s)
        return _decoded(_count_decoder, reply).tokens

    async def describe(self) -> ReplicaDescription:
        reply = await self._exchange("GET", "/ready", b"", self._timeouts.describe_s)
        return _decoded(_description_decoder, reply)

    async def metrics_text(self) -> str:
        reply = await self._exchange("GET", "/metrics", b"", self._timeouts.metrics_s)
        return reply.decode("utf-8", "replace")

    async def _exchange(self, method: str, path: str, body: bytes, limit_s: float) -> bytes:
        """A whole answer. Raises what the backend says is wrong, or `ReplicaLost`."""
        try:
            async with asyncio.timeout(limit_s):
                connection = await connect(self._socket_path, self._timeouts.connect_s)
                try:
                    connection.send(request_bytes(method, path, body, MEDIA_TYPE))
                    return await _whole_body(connection, path)
                finally:
                    connection.close()
        except TimeoutError as error:
            raise ReplicaLost(f"the backend did not answer {path} within {limit_s:g} s") from error


class HttpAnswer:
    """One turn on its own connection, which is opened by the first `next`."""

    def __init__(self, socket_path: str, timeouts: ReplicaTimeouts, request: ChatRequest) -> None:
        self._socket_path = socket_path
        self._timeouts = timeouts
        self._request: ChatRequest | None = request
        self._connection: HttpConnection | None = None
        self._decoder = EventDecoder()
        self._closed = False

    async def next(self, wait_s: float) -> Sequence[ChatEvent]:
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        connection = self._connection or await self._open()
        while True:
            if self._closed:
                raise AnswerClosed
            events = await self._take(connection)
            if events:
                return events
            now = loop.time()
            silent_until = connection.heard_at + self._timeouts.silence_s
            if now >= silent_until:
                raise ReplicaLost(f"the backend said nothing for {self._timeouts.silence_s:g} s")
            if now >= until:
                return ()
            await connection.wait(min(until, silent_until) - now)

    def close(self) -> None:
        self._closed = True
        if self._connection is not None:
            self._connection.close()

    async def _open(self) -> HttpConnection:
        if self._closed or self._request is None:
            raise AnswerClosed
        body = _encoded(self._request)
        connection = await connect(self._socket_path, self._timeouts.connect_s)
        self._connection = connection
        if self._closed:
            connection.close()
            raise AnswerClosed
        self._request = None  # its texts are megabytes, and the answer may take minutes
        connection.send(request_bytes("POST", "/chat", body, MEDIA_TYPE))
        return connection

    async def _take(self, connection: HttpConnection) -> Sequence[ChatEvent]:
        if connection.status not in (None, 200):
            await self._raise_refusal(connection)
        ended = connection.complete or connection.lost
        events = self._decode(connection.take())
        if not events and ended:
            raise ReplicaLost("the backend went away before the answer was complete")
        return events

    async def _raise_refusal(self, connection: HttpConnection) -> None:
        try:
            async with asyncio.timeout(self._timeouts.describe_s):
                await _whole_body(connection, "/chat")
        except TimeoutError as error:
            raise ReplicaLost(f"the backend answered /chat with status {connection.status}") from error

    def _decode(self, piece: bytes) -> list[ChatEvent]:
        events: list[ChatEvent] = []
        try:
            for event in self._decoder.feed(piece):
                events.append(event)
                if isinstance(event, Finished | Failed):
                    break
        except (InvariantBroken, msgspec.DecodeError) as error:
            raise ReplicaLost(f"the backend's stream cannot be read: {error}") from error
        return events


def _encoded(request: ChatRequest | CountRequest) -> bytes:
    try:
        return encode_request(request) if isinstance(request, ChatRequest) else _encoder.encode(request)
    except OverflowError as error:  # a tool's schema may hold any JSON
        raise BadRequest("tools: an integer does not fit in 64 bits") from error


async def _whole_body(connection: HttpConnection, path: str) -> bytes:
    """The body once it is complete, when the status is 200; else raises what it says."""
    body = connection.take()
    while not (connection.complete or connection.lost):
        await connection.wait(_RECHECK_S)
        body += connection.take()
    if not connection.complete:
        raise ReplicaLost(f"the backend went away while it answered {path}")
    if connection.status != 200:
        raise _error_in(body, connection.status, path)
    return body


def _error_in(body: bytes, status: int | None, path: str) -> KeepwarmError:
    try:
        return from_wire(_error_decoder.decode(body))
    except (msgspec.DecodeError, TypeError):
        return ReplicaLost(f"the backend answered {path} with status {status}")


def _decoded(decoder: msgspec.msgpack.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except msgspec.DecodeError as error:
        raise ReplicaLost(f"the backend's answer cannot be read: {error}") from error
