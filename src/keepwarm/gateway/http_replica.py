"""A replica behind the contract runtime's HTTP over a Unix socket.

Counts and descriptions are requests of their own; all turns share one channel, which is opened by
the first of them, and anew by the first after it was lost.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import TypeVar

import msgspec

from keepwarm.chat.messages import Chat
from keepwarm.chat.request import ChatRequest, CountAnswer, CountRequest, ReplicaDescription
from keepwarm.chat.wire import MEDIA_TYPE
from keepwarm.core.errors import (
    BadRequest,
    ErrorOnWire,
    KeepwarmError,
    ReplicaLost,
    from_wire,
)
from keepwarm.core.ids import TenantId
from keepwarm.gateway.event_channel import EventChannel
from keepwarm.gateway.http_answer import HttpAnswer, ReplicaTimeouts
from keepwarm.gateway.http_connection import HttpConnection, connect, request_bytes

T = TypeVar("T")

_RECHECK_S = 1.0
_encoder = msgspec.msgpack.Encoder()
_count_decoder = msgspec.msgpack.Decoder(CountAnswer)
_description_decoder = msgspec.msgpack.Decoder(ReplicaDescription)
_error_decoder = msgspec.msgpack.Decoder(ErrorOnWire)


class HttpReplica:
    """One backend process, by its socket."""

    def __init__(self, socket_path: str, timeouts: ReplicaTimeouts | None = None) -> None:
        self._socket_path = socket_path
        self._timeouts = timeouts or ReplicaTimeouts()
        self._numbers = itertools.count(1)
        self._channel: EventChannel | None = None
        self._connecting: asyncio.Task[EventChannel] | None = None

    def chat(self, request: ChatRequest) -> HttpAnswer:
        number = next(self._numbers)
        return HttpAnswer(request, number=number, channel=self._open_channel, timeouts=self._timeouts)

    def close(self) -> None:
        """Turns that are open are lost; the next one opens another channel."""
        if self._connecting is not None:
            self._connecting.add_done_callback(lambda _: self._close_channel())
        self._close_channel()

    def _close_channel(self) -> None:
        if self._channel is not None:
            self._channel.close()

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

    async def _open_channel(self) -> EventChannel:
        """The one that is open, or a new one. Raises `NotReady`."""
        if self._channel is not None and not self._channel.is_lost:
            return self._channel
        if self._connecting is None:
            connecting = connect(self._socket_path, self._timeouts.connect_s, EventChannel)
            self._connecting = asyncio.create_task(connecting, name=f"channel to {self._socket_path}")
            self._connecting.add_done_callback(self._on_connected)
        return await asyncio.shield(self._connecting)  # others may wait for it too

    def _on_connected(self, connecting: asyncio.Task[EventChannel]) -> None:
        self._connecting = None
        if not connecting.cancelled() and connecting.exception() is None:
            self._channel = connecting.result()

    async def _exchange(self, method: str, path: str, body: bytes, limit_s: float) -> bytes:
        """A whole answer. Raises what the backend says is wrong, `NotReady` or `ReplicaLost`."""
        try:
            async with asyncio.timeout(limit_s):
                connection = await connect(self._socket_path, self._timeouts.connect_s, HttpConnection)
                try:
                    connection.send(request_bytes(method, path, body, MEDIA_TYPE))
                    return await _whole_body(connection, path)
                finally:
                    connection.close()
        except TimeoutError as error:
            raise ReplicaLost(f"the backend did not answer {path} within {limit_s:g} s") from error


def _encoded(request: CountRequest) -> bytes:
    try:
        return _encoder.encode(request)
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
