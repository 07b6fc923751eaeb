"""The socket between a front and a rank: length-prefixed msgpack, both ends.

Owns framing and the two ways to wait (a thread that blocks, a loop that does not). Knows
nothing of what the messages mean. End of file means that the other side is dead.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar, cast

import msgspec

from keepwarm.core.errors import InvariantBroken
from keepwarm.core.rank_messages import FromRank, ToRank

_LENGTH_BYTES = 4
_MAX_MESSAGE_BYTES = 256 << 20
"""A prompt of 10M tokens is 40 MB; more than this is a stream out of step."""
_READ_BYTES = 1 << 18

_encoder = msgspec.msgpack.Encoder()

Message = TypeVar("Message")


class LinkClosed(Exception):
    """The other side is gone."""


def encode_message(message: ToRank | FromRank) -> bytes:
    """One message as it stands in the stream."""
    raw = _encoder.encode(message)
    return len(raw).to_bytes(_LENGTH_BYTES, "little") + raw


class MessageDecoder(Generic[Message]):
    """The inverse of `encode_message`, over a stream cut anywhere."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[Message]) -> None:
        self._decoder = decoder
        self._buffer = bytearray()

    def feed(self, piece: bytes) -> Iterator[Message]:
        """The messages that are complete now. Raises `InvariantBroken` on a stream that is none."""
        self._buffer += piece
        while len(self._buffer) >= _LENGTH_BYTES:
            length = int.from_bytes(self._buffer[:_LENGTH_BYTES], "little")
            if length > _MAX_MESSAGE_BYTES:
                raise InvariantBroken(f"message of {length} bytes between front and rank")
            end = _LENGTH_BYTES + length
            if len(self._buffer) < end:
                return
            raw = bytes(self._buffer[_LENGTH_BYTES:end])
            del self._buffer[:end]
            yield self._decoder.decode(raw)


def to_rank_decoder() -> MessageDecoder[ToRank]:
    """What a rank reads with."""
    return MessageDecoder(msgspec.msgpack.Decoder(ToRank))


def from_rank_decoder() -> MessageDecoder[FromRank]:
    """What a front reads with."""
    return MessageDecoder(msgspec.msgpack.Decoder(FromRank))


class BlockingLink:
    """The rank's end: used by its one thread."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self._socket = sock
        self._decoder = to_rank_decoder()
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def receive(self, wait_s: float) -> list[ToRank]:
        """All messages that are there; waits up to `wait_s` for the first. Raises `LinkClosed`."""
        messages: list[ToRank] = []
        wait_ms = round(wait_s * 1000)
        while self._poll.poll(0 if messages else wait_ms):
            try:
                piece = self._socket.recv(_READ_BYTES)
            except OSError as error:
                raise LinkClosed from error
            if not piece:
                raise LinkClosed
            messages += self._decoder.feed(piece)
        return messages

    def send(self, message: FromRank) -> None:
        """Blocks while the front does not read. Raises `LinkClosed`."""
        try:
            self._socket.sendall(encode_message(message))
        except OSError as error:
            raise LinkClosed from error


class AsyncLink(asyncio.Protocol):
    """The front's end: messages are handed on from the event loop as they come."""

    def __init__(self, on_message: Callable[[FromRank], None]) -> None:
        self._on_message = on_message
        self._decoder = from_rank_decoder()
        self._transport: asyncio.WriteTransport | None = None
        self.closed: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        """Done at end of file; its result is the error where the stream itself was broken."""
        self.heard_at_s = asyncio.get_running_loop().time()
        """When the rank last said anything, on the loop's clock."""

    @classmethod
    async def over(cls, sock: socket.socket, on_message: Callable[[FromRank], None]) -> AsyncLink:
        """Takes the socket over."""
        loop = asyncio.get_running_loop()
        _, link = await loop.create_unix_connection(lambda: cls(on_message), sock=sock)
        return link

    def send(self, message: ToRank) -> None:
        """Never waits: what the rank has not read yet is at most the prompts of the open turns.

        A message to a rank that is gone is dropped; `closed` tells.
        """
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode_message(message))

    def close(self) -> None:
        """Drop the connection and whatever has not been sent."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's derive from nothing of asyncio's

    def data_received(self, data: bytes) -> None:
        self.heard_at_s = asyncio.get_running_loop().time()
        try:
            for message in self._decoder.feed(data):
                self._on_message(message)
        except Exception as error:
            self._end(error)
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(error)
