"""Requests and events between gateway and backend: msgpack, events length-prefixed in a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from keepwarm.chat.events import ChatEvent
from keepwarm.chat.request import ChatRequest
from keepwarm.core.errors import BadRequest, InvariantBroken

MEDIA_TYPE = "application/vnd.keepwarm+msgpack"
_LENGTH_BYTES = 4
_MAX_EVENT_BYTES = 64 << 20

_encoder = msgspec.msgpack.Encoder()
_request_decoder = msgspec.msgpack.Decoder(ChatRequest)
_event_decoder: msgspec.msgpack.Decoder[ChatEvent] = msgspec.msgpack.Decoder(ChatEvent)


def encode_request(request: ChatRequest) -> bytes:
    """The body of the internal request."""
    return _encoder.encode(request)


def decode_request(body: bytes) -> ChatRequest:
    """Raises `BadRequest` when the body is no `ChatRequest`."""
    try:
        return _request_decoder.decode(body)
    except msgspec.DecodeError as error:
        raise BadRequest(f"internal request: {error}") from error


def encode_events(events: Sequence[ChatEvent]) -> bytes:
    """Any number of events as one piece of the stream."""
    pieces: list[bytes] = []
    for event in events:
        raw = _encoder.encode(event)
        pieces += (len(raw).to_bytes(_LENGTH_BYTES, "little"), raw)
    return b"".join(pieces)


class EventDecoder:
    """The inverse of `encode_events`, over a stream cut anywhere."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, piece: bytes) -> Iterator[ChatEvent]:
        """The events that are complete now. Raises `InvariantBroken` on a stream that is none."""
        self._buffer += piece
        while len(self._buffer) >= _LENGTH_BYTES:
            length = int.from_bytes(self._buffer[:_LENGTH_BYTES], "little")
            if length > _MAX_EVENT_BYTES:
                raise InvariantBroken(f"event of {length} bytes in the backend's stream")
            if len(self._buffer) < _LENGTH_BYTES + length:
                return
            raw = bytes(self._buffer[_LENGTH_BYTES : _LENGTH_BYTES + length])
            del self._buffer[: _LENGTH_BYTES + length]
            yield _decode_event(raw)


def _decode_event(raw: bytes) -> ChatEvent:
    try:
        return _event_decoder.decode(raw)
    except msgspec.DecodeError as error:
        raise InvariantBroken(f"the backend's stream: {error}") from error
