"""One request to an ASGI app without a server, its client's every move in the test's hands."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

from keepwarm.chat.events import ChatEvent
from keepwarm.chat.wire import EventDecoder
from keepwarm.contract.runtime import BackendApp
from tests.contract.fake_backend import PATIENCE_S

AsgiMessage = MutableMapping[str, Any]


class AsgiClient:
    """Sends a whole body; then hears, stops reading, breaks or goes away."""

    def __init__(self, method: str, path: str, *pieces: bytes) -> None:
        self.scope = {"type": "http", "method": method, "path": path}
        self.sent: list[AsgiMessage] = []
        self.may_read = asyncio.Event()
        self.may_read.set()
        self.breaks_with: OSError | None = None
        self._requests = [
            {"type": "http.request", "body": piece, "more_body": number < len(pieces)}
            for number, piece in enumerate(pieces or (b"",), start=1)
        ]
        self._gone = asyncio.Event()
        self._heard = asyncio.Event()

    def go_away(self) -> None:
        self._requests.clear()
        self._gone.set()

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

    @property
    def events(self) -> list[ChatEvent]:
        return list(EventDecoder().feed(b"".join(self.bodies)))

    @property
    def is_complete(self) -> bool:
        return not self.sent[-1].get("more_body", False)

    async def _receive(self) -> AsgiMessage:
        if self._requests:
            return self._requests.pop(0)
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: AsgiMessage) -> None:
        if message["type"] == "http.response.body":
            if self.breaks_with is not None:
                raise self.breaks_with
            await self.may_read.wait()
        self.sent.append(message)
        self._heard.set()
