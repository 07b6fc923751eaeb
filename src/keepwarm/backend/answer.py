"""One turn's answer: from a rank's events to what its client is told.

Owns the order of events, the usage and the times of one request. Sends nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import assert_never

from keepwarm.backend.rank_port import RankEvent
from keepwarm.backend.words import TurnWords
from keepwarm.chat.events import (
    Accepted,
    Admitted,
    ChatEvent,
    Failed,
    Finished,
    StopReason,
    Timings,
    Usage,
)
from keepwarm.core import rank_messages
from keepwarm.core.errors import EngineLost, NotReady, to_wire


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputLimit:
    """How many tokens the answer may have, and who set it."""

    tokens: int
    reached_reason: StopReason
    """"context_full" where the room left by the prompt is less than what the caller asked for."""

    @classmethod
    def within(cls, room_tokens: int, *, asked_tokens: int | None) -> OutputLimit:
        if asked_tokens is None or asked_tokens > room_tokens:
            return cls(tokens=room_tokens, reached_reason="context_full")
        return cls(tokens=asked_tokens, reached_reason="max_tokens")


class Answer:
    """Call `take` with the rank's events, in order, until `has_ended`."""

    def __init__(
        self,
        *,
        words: TurnWords,
        limit: OutputLimit,
        received_at_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._words = words
        self._limit = limit
        self._received_at_s = received_at_s
        self._clock = clock
        self._admitted = Admitted(cached_tokens=0)
        self._admitted_s = 0.0
        self._first_token_s: float | None = None
        self.outcome: StopReason | str | None = None
        """Why it ended, or an error's code; None while it goes on."""

    @property
    def has_ended(self) -> bool:
        """The terminal event was among what `take` returned."""
        return self.outcome is not None

    @property
    def num_malformed(self) -> int:
        """Stretches of markup that could not be read."""
        return self._words.num_malformed

    @property
    def cut_at(self) -> int | None:
        """The rank must stop after so many tokens: a stop string was met."""
        return None if self._words.stop_string is None else self._words.num_output_tokens

    def accepted(self) -> Accepted:
        return Accepted(prompt_tokens=len(self._words.prompt), is_known=self._words.is_known)

    def take(self, events: Sequence[RankEvent]) -> list[ChatEvent]:
        """What the client is told of them; what comes after the end is ignored."""
        told: list[ChatEvent] = []
        for event in events:
            if not self.has_ended:
                told += self.take_one(event)
        return told

    def remember(self) -> None:
        """Keep what its client got; once, at the end or when the client is gone."""
        self._words.remember()

    def take_one(self, event: RankEvent) -> Sequence[ChatEvent]:
        """The same for one event, before the end."""
        match event:
            case rank_messages.Tokens():
                return self._take_tokens(event)
            case rank_messages.Admitted():
                self._admitted_s = self._age_s()
                self._admitted = Admitted(
                    cached_tokens=event.cached_tokens,
                    host_tokens=event.host_tokens,
                    disk_tokens=event.disk_tokens,
                )
                return (self._admitted,)
            case rank_messages.Ended():
                return self._take_end(event)
            case _:
                assert_never(event)

    def _take_tokens(self, event: rank_messages.Tokens) -> Sequence[ChatEvent]:
        if self._first_token_s is None:
            self._first_token_s = self._age_s()
        deltas = self._words.add(event.tokens, event.logprobs)
        if self._words.stop_string is None:
            return deltas
        return (*deltas, self._finish("stop_string"))

    def _take_end(self, event: rank_messages.Ended) -> Sequence[ChatEvent]:
        match event.reason:
            case "stop":
                return self._flush_and_finish("end", with_calls="tool_use")
            case "length":
                reached = self._limit.reached_reason
                return self._flush_and_finish(reached, with_calls=reached)
            case "aborted":  # not by its client, who listens no more
                error = to_wire(NotReady("the backend is shutting down"))
            case "failed":
                error = event.error or to_wire(EngineLost("the engine failed"))
            case _:
                assert_never(event.reason)
        self.outcome = error.code
        return (Failed(error=error),)

    def _flush_and_finish(self, reason: StopReason, *, with_calls: StopReason) -> Sequence[ChatEvent]:
        deltas = self._words.finish()  # what was held back may complete a stop string or a call
        if self._words.stop_string is not None:
            reason = "stop_string"
        elif self._words.num_calls:
            reason = with_calls
        return (*deltas, self._finish(reason))

    def _finish(self, reason: StopReason) -> Finished:
        self.outcome = reason
        admitted = self._admitted
        return Finished(
            reason=reason,
            stop_string=self._words.stop_string,
            usage=Usage(
                prompt_tokens=len(self._words.prompt),
                cached_tokens=admitted.cached_tokens,
                host_cached_tokens=admitted.host_tokens,
                disk_cached_tokens=admitted.disk_tokens,
                output_tokens=self._words.num_output_tokens,
            ),
            timings=Timings(
                admitted_s=self._admitted_s, first_token_s=self._first_token_s, total_s=self._age_s()
            ),
        )

    def _age_s(self) -> float:
        return self._clock() - self._received_at_s
