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
_KEPT_BYTES = 16 << 20
"""A larger buffer is given back once its message is told; a prompt of 1M tokens has 5 MB."""

_encoder = msgspec.msgpack.Encoder()

Message = TypeVar("Message")


class LinkClosed(Exception):
    """The other side is gone."""


def encode_message(message: msgspec.Struct) -> bytearray:
    """One message as it stands in the stream."""
    buffer = bytearray(_LENGTH_BYTES)
    _encoder.encode_into(message, buffer, _LENGTH_BYTES)
    buffer[:_LENGTH_BYTES] = (len(buffer) - _LENGTH_BYTES).to_bytes(_LENGTH_BYTES, "little")
    return buffer


class MessageDecoder(Generic[Message]):
    """The inverse of `encode_message`, over a stream cut anywhere.

    A reader with a socket reads into `room`, then says how much; so a long prompt is copied once
    on its way from the kernel into its message, and a buffer that fits the last one is there.
    """

    def __init__(self, decoder: msgspec.msgpack.Decoder[Message]) -> None:
        self._decoder = decoder
        self._buffer = bytearray(_READ_BYTES)
        self._start = 0  # of the first message that has not been told
        self._filled = 0

    def feed(self, piece: bytes | bytearray) -> Iterator[Message]:
        """The messages that are complete now. Raises `InvariantBroken` on a stream that is none."""
        rest = memoryview(piece)
        while rest:
            room = self.room()
            part, rest = rest[: len(room)], rest[len(room) :]
            room[: len(part)] = part
            yield from self.received(len(part))

    def room(self) -> memoryview:
        """Where the next bytes of the stream go; never empty."""
        return memoryview(self._buffer)[self._filled :]

    def received(self, num_bytes: int) -> Iterator[Message]:
        """So many bytes were written into `room`; else like `feed`."""
        self._filled += num_bytes
        while (end := self._end_of_message()) <= self._filled:
            raw = memoryview(self._buffer)[self._start + _LENGTH_BYTES : end]
            self._start = end
            yield self._decoder.decode(raw)
        self._make_room(end - self._start)

    def _end_of_message(self) -> int:
        """As far as it is known: of its length, or of the whole."""
        end = self._start + _LENGTH_BYTES
        if end > self._filled:
            return end
        length = int.from_bytes(self._buffer[self._start : end], "little")
        if length > _MAX_MESSAGE_BYTES:
            raise InvariantBroken(f"message of {length} bytes between front and rank")
        return end + length

    def _make_room(self, num_bytes: int) -> None:
        """For a message of so many bytes, of which some may be there already."""
        if self._start == self._filled:
            self._start = self._filled = 0
            if len(self._buffer) > _KEPT_BYTES:
                self._buffer = bytearray(_READ_BYTES)
        if self._start + num_bytes <= len(self._buffer):
            return
        begun = self._buffer[self._start : self._filled]
        if num_bytes > len(self._buffer):
            self._buffer = bytearray(num_bytes + num_bytes // 2)  # a conversation's next turn is longer
        self._buffer[: len(begun)] = begun
        self._start, self._filled = 0, len(begun)


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
        while not messages and self._poll.poll(wait_ms):
            while num_bytes := self._read():
                messages += self._decoder.received(num_bytes)
        return messages

    def _read(self) -> int:
        """Bytes that were there; 0 when none are there now. Raises `LinkClosed`."""
        try:
            num_bytes = self._socket.recv_into(self._decoder.room(), 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise LinkClosed from error
        if not num_bytes:
            raise LinkClosed
        return num_bytes

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
