"""One turn in the front, from its receipt to its one terminal event.

    preparing (a thread tokenises) ──submit──▶ with the rank ──Ended, stop string──▶ over
        └───────────── error, close ────────────────┴────────────── close ───────────▶ over

It has a task while it is prepared and none afterwards: the rank's report calls `hear`, and what
comes of it is told at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from keepwarm.backend.answer import Answer, OutputLimit
from keepwarm.backend.rank_port import RankEvent, RankPort
from keepwarm.backend.words import TurnWords
from keepwarm.chat.events import Failed
from keepwarm.chat.request import ChatRequest
from keepwarm.contract.backend import Tell
from keepwarm.contract.pulled_turn import failure_of
from keepwarm.core.errors import KeepwarmError
from keepwarm.core.rank_messages import Submit

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTurn:
    """What is known of a turn once its prompt is tokenised."""

    words: TurnWords
    submit: Submit
    limit: OutputLimit


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnPorts:
    """What all turns of a front share."""

    rank: RankPort
    clock: Callable[[], float]
    prepare: Callable[[ChatRequest], Awaitable[PreparedTurn]]
    """Raises `BadRequest`, `ContextTooLong`."""
    on_over: Callable[[FrontTurn, str], None]
    """Called once a turn, with a stop reason, an error's code or "aborted"."""


class FrontTurn:
    """An `OpenTurn`."""

    def __init__(self, request: ChatRequest, *, ports: TurnPorts, tell: Tell) -> None:
        self.request_id = request.request_id
        self.answer: Answer | None = None
        """Once it is prepared."""
        self._ports = ports
        self._tell = tell
        self._received_at_s = ports.clock()
        self._is_over = False
        name = f"prepare {request.request_id}"
        self._preparing = asyncio.create_task(self._prepare(request), name=name)

    def close(self) -> None:
        """See `OpenTurn.close`."""
        if not self._is_over:
            self._stop()
            self._remember_what_was_sent()
            self._leave("aborted")

    def fail(self, error: Exception) -> None:
        """End it for this reason, unless it is over."""
        if not self._is_over:
            self._stop()
            self._end_failed(failure_of(error, self.request_id))

    async def _prepare(self, request: ChatRequest) -> None:
        """Its texts are megabytes and the answer may take minutes, so only this task holds the request."""
        ports = self._ports
        try:
            turn = await ports.prepare(request)
            self.answer = answer = Answer(
                words=turn.words,
                limit=turn.limit,
                received_at_s=self._received_at_s,
                clock=ports.clock,
            )
            self._tell((answer.accepted(),))
            ports.rank.submit(turn.submit, self._hear, session=request.session_key)
        except KeepwarmError as error:  # the rank has not taken it
            self._end_failed(failure_of(error, self.request_id))
        except Exception as error:
            self.fail(error)

    def _hear(self, event: RankEvent) -> None:
        """A `rank_port.Listener`. Whatever goes wrong here is this turn's end and nobody else's."""
        if self._is_over or self.answer is None:
            return
        try:
            self._take(self.answer, event)
        except Exception as error:
            self.fail(error)

    def _take(self, answer: Answer, event: RankEvent) -> None:
        told = answer.take_one(event)
        if answer.outcome is not None:
            if answer.cut_at is not None:
                self._ports.rank.cut(self.request_id, answer.cut_at)
            answer.remember()  # before anybody can send it back
            self._leave(answer.outcome)
        if told:
            self._tell(told)

    def _stop(self) -> None:
        """Whoever works for it stops within one step."""
        self._preparing.cancel()
        self._ports.rank.abort(self.request_id)

    def _remember_what_was_sent(self) -> None:
        if self.answer is None:
            return
        try:
            self.answer.remember()
        except Exception:  # nobody waits for it
            logger.exception("request %s: its answer cannot be remembered", self.request_id)

    def _end_failed(self, failed: Failed) -> None:
        self._leave(failed.error.code)
        self._tell((failed,))

    def _leave(self, outcome: str) -> None:
        """The last of it, however it ended."""
        self._is_over = True
        self._ports.on_over(self, outcome)
