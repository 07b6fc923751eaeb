"""The gateway's end of the one HTTP request that carries all its turns with a backend.

Its body asks and its answer tells (`chat.wire`); both go on for as long as the two processes live.
Kept this low because every token of every stream passes here: no task, no lock and no copy but one a
piece. End of file is the backend's death, and every open turn is told.
"""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

import httptools

from keepwarm.chat.events import ChatEvent, Failed, Finished
from keepwarm.chat.wire import MEDIA_TYPE, Leave, Pause, Resume, encode_message, said_reader
from keepwarm.core.errors import InvariantBroken, ReplicaLost

_HEAD = (
    "POST /channel HTTP/1.1\r\nhost: backend\r\n"
    f"content-type: {MEDIA_TYPE}\r\ntransfer-encoding: chunked\r\n\r\n"
).encode("ascii")


class TurnListener(Protocol):
    """Who a turn's events are for."""

    def hear(self, events: list[ChatEvent]) -> None:
        """The next ones; the last of all is terminal."""

    def lose(self, error: ReplicaLost) -> None:
        """There will be no more, and there was no terminal one."""


class EventChannel(asyncio.Protocol):
    """Open from `http_connection.connect` until `is_lost`."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._frames = said_reader()
        self._pieces: list[bytes] = []
        self._listeners: dict[int, TurnListener] = {}
        self._lost: ReplicaLost | None = None

    @property
    def is_lost(self) -> bool:
        """No turn can begin or go on."""
        return self._lost is not None

    def ask(self, number: int, asked: bytes, listener: TurnListener) -> None:
        """Begin a turn. `asked` is its `Ask` as bytes; its number is new on this channel."""
        if self._lost is not None:
            listener.lose(self._lost)
            return
        self._listeners[number] = listener
        self._send(asked)

    def leave(self, number: int) -> None:
        """Hear no more of it, and stop its work. A turn that is over is ignored."""
        if self._listeners.pop(number, None) is not None:
            self._send(encode_message(Leave(number=number)))

    def pause(self, number: int) -> None:
        """Its reader does not keep up."""
        if number in self._listeners:
            self._send(encode_message(Pause(number=number)))

    def resume(self, number: int) -> None:
        """Its reader has caught up."""
        if number in self._listeners:
            self._send(encode_message(Resume(number=number)))

    def close(self) -> None:
        """Every open turn is lost, and the backend ends its work on them."""
        self._lose("the connection to the backend was closed")

    def _send(self, frame: bytes) -> None:
        if self._transport is not None and not self.is_lost:
            self._transport.write(b"%x\r\n%b\r\n" % (len(frame), frame))

    def _lose(self, why: str) -> None:
        if self.is_lost:
            return
        self._lost = ReplicaLost(why)
        if self._transport is not None:
            self._transport.abort()
        listeners, self._listeners = self._listeners, {}
        for listener in listeners.values():
            listener.lose(self._lost)

    def _dispatch(self, piece: bytes) -> None:
        """Raises `InvariantBroken`."""
        listeners = self._listeners
        for said in self._frames.feed(piece):
            for number, events in said:
                listener = listeners.get(number)
                if listener is None or not events:
                    continue  # it was left while this was on its way
                if isinstance(events[-1], Finished | Failed):
                    del listeners[number]
                listener.hear(events)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # a stream socket's; uvloop's is no subclass
        self._transport.write(_HEAD)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
            pieces, self._pieces = self._pieces, []
            for piece in pieces:
                self._dispatch(piece)
        except (httptools.HttpParserError, InvariantBroken) as error:
            self._lose(f"the backend's stream cannot be read: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose("the backend went away before the answer was complete")

    # httptools

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status != 200:
            self._lose(f"the backend answered /channel with status {status}")

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        """The backend is shutting down; all turns had their end before."""
        asyncio.get_running_loop().call_soon(self._lose, "the backend has ended")
