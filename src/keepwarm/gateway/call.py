"""One HTTP request and its answer: the ASGI messages with limits, timeouts and a record."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from keepwarm.core.errors import BadRequest, BodyTooLarge, InvariantBroken
from keepwarm.dialects.dialect import ErrorReply
from keepwarm.gateway.alarm import Alarm
from keepwarm.gateway.record import RequestRecord
from keepwarm.gateway.settings import GatewaySettings

_DISCARD_S = 10.0
_DISCARD_BODIES = 4
"""Of an unwanted body, so many times the limit are taken in and dropped: a client that is still
sending when the connection closes sees a reset instead of the error."""

JSON = "application/json"


class ClientGone(Exception):
    """Nobody takes the answer any more. `outcome` is for the record."""

    def __init__(self, outcome: str) -> None:
        super().__init__(outcome)
        self.outcome = outcome


class Call:
    """Owned by the task that answers; only `wait_gone` may run beside it."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, *, route: str, settings: GatewaySettings
    ) -> None:
        self.headers = Headers(scope=scope)
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.path_params: Mapping[str, str] = scope.get("path_params", {})
        self.started = False
        self.finished = False
        self.record = RequestRecord(
            request_id=f"req_{secrets.token_hex(12)}",
            route=route,
            received_at=asyncio.get_running_loop().time(),
        )
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._stall = Alarm(self._on_stall)
        self._has_stalled = False
        self._receive = receive
        self._send = send
        self._settings = settings
        self._body_ended = False

    async def body(self) -> bytes:
        """The whole body. Raises `BodyTooLarge`, `BadRequest` when it stalls, `ClientGone`."""
        limit = self._settings.max_body_bytes
        if self._declared_bytes() > limit:
            raise BodyTooLarge(limit_bytes=limit)
        pieces: list[bytes] = []
        size = 0
        while not self._body_ended:
            piece = await self._piece(self._settings.body_wait_s)
            size += len(piece)
            if size > limit:
                raise BodyTooLarge(limit_bytes=limit)
            pieces.append(piece)
        return b"".join(pieces)

    async def discard_body(self) -> None:
        """Take in what the client still sends, within bounds, so that it will read the answer."""
        if self.headers.get("expect", "").lower() == "100-continue":
            return  # it waits for our word before it sends
        left = _DISCARD_BODIES * self._settings.max_body_bytes
        try:
            async with asyncio.timeout(_DISCARD_S):
                while not self._body_ended and left > 0:
                    left -= len(await self._piece(_DISCARD_S))
        except (TimeoutError, BadRequest):
            return

    async def wait_gone(self) -> None:
        """Return once the client has gone. The body must have been read."""
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        """Status and headers, with the request's id. Raises `ClientGone`."""
        if self.started:
            raise InvariantBroken("an answer was started twice")
        self.started = True
        self.record.status = status
        named = {**headers, "request-id": self.record.request_id, "x-request-id": self.record.request_id}
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in named.items()]
        await self._put({"type": "http.response.start", "status": status, "headers": raw})

    async def write(self, piece: bytes) -> None:
        """More of the body; waits for a client that reads slowly. Raises `ClientGone`."""
        await self._put({"type": "http.response.body", "body": piece, "more_body": True})

    async def finish(self, last: bytes = b"") -> None:
        """The end of the body. Raises `ClientGone`."""
        self.finished = True
        await self._put({"type": "http.response.body", "body": last, "more_body": False})

    async def reply(
        self, status: int, body: bytes, *, media_type: str = JSON, headers: Mapping[str, str] | None = None
    ) -> None:
        """A whole answer at once. Raises `ClientGone`."""
        own = {"content-type": media_type, "content-length": str(len(body))}
        await self.start(status, own | dict(headers or {}))
        await self.finish(body)

    async def reply_error(self, error: ErrorReply) -> None:
        """An error at once. Raises `ClientGone`."""
        await self.discard_body()
        await self.reply(error.status, error.body, headers=_advice(error))

    def close(self) -> None:
        """The request is over: nothing of it is left in the loop."""
        self._stall.close()

    def _declared_bytes(self) -> int:
        declared = self.headers.get("content-length", "0")
        return int(declared) if declared.isascii() and declared.isdigit() else 0

    async def _piece(self, wait_s: float) -> bytes:
        try:
            async with asyncio.timeout(wait_s):
                message = await self._receive()
        except TimeoutError as error:
            self._body_ended = True  # as far as we are concerned
            raise BadRequest(f"the body stopped arriving for {wait_s:g} s") from error
        if message["type"] == "http.disconnect":
            raise ClientGone("client_gone")
        self._body_ended = not message.get("more_body", False)
        piece: bytes = message.get("body", b"")
        return piece

    async def _put(self, message: Message) -> None:
        """A stream passes here with every token: the limit costs an attribute, not a timer each."""
        self._stall.set(self._loop.time() + self._settings.send_stall_s)
        try:
            await self._send(message)
        except OSError as error:
            raise ClientGone("client_gone") from error
        except asyncio.CancelledError as error:
            if self._has_stalled and self._task is not None and self._task.uncancel() == 0:
                raise ClientGone("client_stalled") from error
            raise
        finally:
            self._stall.stop()

    def _on_stall(self) -> None:
        """While `_put` waits."""
        self._has_stalled = True
        if self._task is not None:
            self._task.cancel()


def _advice(error: ErrorReply) -> dict[str, str]:
    """Whether to come back, and when. Unless told not to, Claude Code tries a wrong key ten times,
    for minutes."""
    if error.retry_after_s is not None:
        return {"retry-after": str(error.retry_after_s)}
    return {"x-should-retry": "false"} if error.status == 401 or error.is_lasting else {}
