"""One gateway's turns on one HTTP request: its body asks, its answer tells.

    body    ──Ask──▶ turn ──told──▶ unsent ──one frame a moment──▶ answer
            ──Leave──▶ the turn is closed      ──Pause, Resume──▶ what it tells waits

What all turns told without the loop waiting in between goes out as one piece, so a step of the
engine costs one write and not one a token. When the gateway is gone, so is everything it asked for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, assert_never

from keepwarm.chat.events import ChatEvent, Terminal
from keepwarm.chat.request import ChatRequest
from keepwarm.chat.wire import (
    Ask,
    Leave,
    Pause,
    Resume,
    Said,
    ToBackend,
    decode_request,
    encode_said,
    to_backend_reader,
)
from keepwarm.contract.backend import Backend, OpenTurn, TellingBackend
from keepwarm.contract.pulled_turn import PulledTurn, failure_of
from keepwarm.core.errors import InvariantBroken
from keepwarm.core.ids import RequestId

logger = logging.getLogger(__name__)

_WRITE_LIMIT_S = 600.0
"""A gateway that reads nothing for this long is taken for gone."""

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Channel:
    """Serves one request whose head has been answered."""

    def __init__(self, backend: Backend, check_ready: Callable[[], None]) -> None:
        """`check_ready` raises why a turn is not taken."""
        self._backend = backend
        self._check_ready = check_ready
        self._turns: dict[int, _Turn] = {}
        self._pulls: set[asyncio.Task[None]] = set()
        self._speaking: list[_Turn] = []
        """Those with something to send."""
        self._stirred = asyncio.Event()
        self._ends_when_idle = False

    async def serve(self, receive: Receive, send: Send) -> None:
        """Returns when the gateway is gone, or after `end_when_idle`; no turn is left then."""
        reader = asyncio.create_task(self._read(receive), name="channel's asks")
        writer = asyncio.create_task(self._write(send), name="channel's events")
        try:
            await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (reader, writer):
                task.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)
            await self._close_all()
        for task in (reader, writer):
            if not task.cancelled() and (error := task.exception()) is not None:
                logger.warning("a gateway's channel is dropped: %r", error)

    def end_when_idle(self) -> None:
        """Let open turns end, and then the channel."""
        self._ends_when_idle = True
        self._stirred.set()

    # what the gateway says

    async def _read(self, receive: Receive) -> None:
        frames = to_backend_reader()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            for said in frames.feed(message.get("body", b"")):
                self._heed(said)
            if not message.get("more_body", False):
                self.end_when_idle()

    def _heed(self, message: ToBackend) -> None:
        match message:
            case Ask():
                self._ask(message)
            case Leave():
                self._leave(message.number)
            case Pause():
                if (turn := self._turns.get(message.number)) is not None:
                    turn.is_paused = True
            case Resume():
                if (turn := self._turns.get(message.number)) is not None:
                    turn.is_paused = False
                    self._speak(turn)
            case _:
                assert_never(message)

    def _ask(self, ask: Ask) -> None:
        if ask.number in self._turns:
            raise InvariantBroken(f"turn {ask.number} was asked for twice")
        self._turns[ask.number] = turn = _Turn(ask.number, self._speak)
        request_id = RequestId("(unread)")
        try:
            request = decode_request(ask.request)
            request_id = request.request_id
            self._check_ready()
            self._begin(turn, request)
        except Exception as error:
            turn.tell((failure_of(error, request_id),))

    def _begin(self, turn: _Turn, request: ChatRequest) -> None:
        if isinstance(self._backend, TellingBackend):
            turn.work = self._backend.open_turn(request, turn.tell)
            return
        turn.work = turn.pulled = pulled = PulledTurn(self._backend, request, turn.tell)
        self._pulls.add(pulled.task)
        pulled.task.add_done_callback(self._pulls.discard)

    def _leave(self, number: int) -> None:
        turn = self._turns.pop(number, None)
        if turn is None:
            return  # it ended while the gateway said so
        turn.events = []
        turn.has_ended = True
        if turn.work is not None:
            turn.work.close()
        self._stirred.set()  # it may have been the last

    async def _close_all(self) -> None:
        for number in tuple(self._turns):
            self._leave(number)
        if self._pulls:
            await asyncio.wait(self._pulls)

    # what the turns say

    def _speak(self, turn: _Turn) -> None:
        """It has something to send, unless it is paused or about to be sent anyway."""
        if turn.events and not turn.is_paused and not turn.is_speaking:
            turn.is_speaking = True
            self._speaking.append(turn)
            self._stirred.set()

    async def _write(self, send: Send) -> None:
        while True:
            await self._stirred.wait()
            self._stirred.clear()
            said = self._take()
            is_last = self._ends_when_idle and not self._turns
            if said or is_last:
                body = encode_said(said) if said else b""
                async with asyncio.timeout(_WRITE_LIMIT_S):
                    await send({"type": "http.response.body", "body": body, "more_body": not is_last})
            if is_last:
                return

    def _take(self) -> list[Said]:
        """Everything that may be sent now."""
        speaking, self._speaking = self._speaking, []
        said: list[Said] = []
        for turn in speaking:
            turn.is_speaking = False
            if turn.events and not turn.is_paused:
                said.append((turn.number, turn.take()))
                if turn.has_ended:
                    del self._turns[turn.number]
        return said


class _Turn:
    """What one turn told and the gateway has not been sent."""

    __slots__ = ("_speak", "events", "has_ended", "is_paused", "is_speaking", "number", "pulled", "work")

    def __init__(self, number: int, speak: Callable[[_Turn], None]) -> None:
        self._speak = speak
        self.number = number
        self.work: OpenTurn | None = None
        self.pulled: PulledTurn | None = None
        """The same, where it must be told that it may go on."""
        self.events: list[ChatEvent] = []
        self.is_paused = False
        self.is_speaking = False
        self.has_ended = False
        """Whatever is told now is too late."""

    def tell(self, events: Sequence[ChatEvent]) -> None:
        """See `Tell`."""
        if self.has_ended or not events:
            return
        self.events += events
        if isinstance(events[-1], Terminal):
            self.has_ended = True
        self._speak(self)

    def take(self) -> list[ChatEvent]:
        """All of it, for sending."""
        events, self.events = self.events, []
        if self.pulled is not None:
            self.pulled.taken()
        return events
