"""One request to an ASGI app without a server, its client's every move in the test's hands."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

from keepwarm.chat.events import ChatEvent
from keepwarm.chat.wire import said_reader
from keepwarm.contract.runtime import BackendApp
from tests.contract.fake_backend import PATIENCE_S

AsgiMessage = MutableMapping[str, Any]


class AsgiClient:
    """Sends a whole body; then hears, stops reading, breaks or goes away."""

    def __init__(self, method: str, path: str, *pieces: bytes, goes_on: bool = False) -> None:
        """`goes_on`: the pieces are not the whole body."""
        self.scope = {"type": "http", "method": method, "path": path}
        self.sent: list[AsgiMessage] = []
        self.may_read = asyncio.Event()
        self.may_read.set()
        self.breaks_with: OSError | None = None
        self._requests = [
            {"type": "http.request", "body": piece, "more_body": goes_on or number < len(pieces)}
            for number, piece in enumerate(pieces or (b"",), start=1)
        ]
        self._gone = asyncio.Event()
        self._asked = asyncio.Event()
        self._heard = asyncio.Event()

    def say(self, piece: bytes) -> None:
        """More of the body. Only where it was opened without an end."""
        self._requests.append({"type": "http.request", "body": piece, "more_body": True})
        self._asked.set()

    def go_away(self) -> None:
        self._requests.clear()
        self._gone.set()
        self._asked.set()

    async def call(self, app: BackendApp) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await app(self.scope, self._receive, self._send)

    async def until_heard(self, num_bodies: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.bodies) < num_bodies:
                self._heard.clear()
                await self._heard.wait()

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.sent if message["type"] == "http.response.body"]

    def events(self, number: int = 1) -> list[ChatEvent]:
        """What was said of this turn."""
        return events_of(number, b"".join(self.bodies))

    @property
    def is_complete(self) -> bool:
        return not self.sent[-1].get("more_body", False)

    async def _receive(self) -> AsgiMessage:
        while not (self._requests or self._gone.is_set()):
            self._asked.clear()
            await self._asked.wait()
        return self._requests.pop(0) if self._requests else {"type": "http.disconnect"}

    async def _send(self, message: AsgiMessage) -> None:
        if message["type"] == "http.response.body":
            if self.breaks_with is not None:
                raise self.breaks_with
            await self.may_read.wait()
        self.sent.append(message)
        self._heard.set()


def events_of(number: int, stream: bytes) -> list[ChatEvent]:
    """What a channel's answer says of one turn."""
    return [
        event
        for said in said_reader().feed(stream)
        for said_of, events in said
        if said_of == number
        for event in events
    ]
