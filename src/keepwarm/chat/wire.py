"""What gateway and backend say to each other: length-prefixed msgpack, many turns on one channel.

    gateway ──Ask, Leave, Pause, Resume──▶ backend        a message a frame
    gateway ◀──(number, events) of many turns── backend   everything that one moment brought a frame

The gateway numbers its turns; a number is used once on a channel. The last of a turn's events is its
terminal one, and nothing is said of it afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import msgspec

from keepwarm.chat.events import ChatEvent
from keepwarm.chat.request import ChatRequest
from keepwarm.core.errors import BadRequest, InvariantBroken

MEDIA_TYPE = "application/vnd.keepwarm+msgpack"
_LENGTH_BYTES = 4
_MAX_FRAME_BYTES = 256 << 20
"""The gateway's own limit of a body is far lower; more than this is a stream out of step."""

Message = TypeVar("Message")


class Ask(msgspec.Struct, frozen=True, kw_only=True, tag="ask"):
    """Answer this turn. The request is read apart, so that one that cannot be is that turn's end alone."""

    number: int
    request: msgspec.Raw


class Leave(msgspec.Struct, frozen=True, kw_only=True, tag="leave"):
    """Nobody reads the answer any more: the work stops, and nothing more is said of it."""

    number: int


class Pause(msgspec.Struct, frozen=True, kw_only=True, tag="pause"):
    """Its client reads too slowly: say nothing of it for now."""

    number: int


class Resume(msgspec.Struct, frozen=True, kw_only=True, tag="resume"):
    """Go on with it, what came meanwhile first."""

    number: int


ToBackend = Ask | Leave | Pause | Resume
Said = tuple[int, Sequence[ChatEvent]]
"""A turn's number, and what happened to it since the last frame, in order."""

_encoder = msgspec.msgpack.Encoder()
_request_decoder = msgspec.msgpack.Decoder(ChatRequest)


def encode_request(request: ChatRequest) -> bytes:
    """Raises `BadRequest` for what msgpack cannot hold: a tool's schema may be any JSON."""
    try:
        return _encoder.encode(request)
    except OverflowError as error:
        raise BadRequest("tools: an integer does not fit in 64 bits") from error


def encode_ask(number: int, request: ChatRequest) -> bytes:
    """A frame that begins a turn. Raises `BadRequest`."""
    return encode_message(Ask(number=number, request=msgspec.Raw(encode_request(request))))


def decode_request(raw: bytes | msgspec.Raw) -> ChatRequest:
    """Raises `BadRequest` when it is no `ChatRequest`."""
    try:
        return _request_decoder.decode(raw)
    except msgspec.DecodeError as error:
        raise BadRequest(f"internal request: {error}") from error


def encode_message(message: ToBackend) -> bytes:
    """A frame to the backend."""
    return _framed(_encoder.encode(message))


def encode_said(said: Sequence[Said]) -> bytes:
    """A frame to the gateway."""
    return _framed(_encoder.encode(said))


def _framed(raw: bytes) -> bytes:
    return len(raw).to_bytes(_LENGTH_BYTES, "little") + raw


class FrameReader(Generic[Message]):
    """Takes frames out of a stream that is cut anywhere."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[Message]) -> None:
        self._decoder = decoder
        self._buffer = bytearray()

    def feed(self, piece: bytes) -> Iterator[Message]:
        """The messages that are complete now. Raises `InvariantBroken` on a stream that is none."""
        self._buffer += piece
        start, end = 0, _LENGTH_BYTES
        while len(self._buffer) >= end:
            length = int.from_bytes(self._buffer[start:end], "little")
            if length > _MAX_FRAME_BYTES:
                raise InvariantBroken(f"frame of {length} bytes between gateway and backend")
            if len(self._buffer) < end + length:
                break
            with memoryview(self._buffer) as view:
                raw = bytes(view[end : end + length])
            start, end = end + length, end + length + _LENGTH_BYTES
            yield self._decoded(raw)
        del self._buffer[:start]

    def _decoded(self, raw: bytes) -> Message:
        try:
            return self._decoder.decode(raw)
        except msgspec.DecodeError as error:
            raise InvariantBroken(f"between gateway and backend: {error}") from error


def to_backend_reader() -> FrameReader[ToBackend]:
    """What a backend reads a channel with."""
    return FrameReader(msgspec.msgpack.Decoder(ToBackend))


def said_reader() -> FrameReader[list[tuple[int, list[ChatEvent]]]]:
    """What a gateway reads a channel with."""
    return FrameReader(msgspec.msgpack.Decoder(list[tuple[int, list[ChatEvent]]]))
