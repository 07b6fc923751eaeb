"""A timer for waits that nearly always end early.

A stream waits for its next token with a limit of seconds and gets it after milliseconds. Setting the
alarm anew is then an attribute: the loop's own timer rings for the first time that was set, sees that
it is later now, and is wound again for the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """What a loop gives for a call that is due later."""

    def cancel(self) -> None: ...


class Timers(Protocol):
    """What an alarm needs of a loop."""

    def time(self) -> float: ...
    def call_at(self, when: float, callback: Callable[[], None], /) -> Timer: ...


class Alarm:
    """Calls `ring` once the instant it was last set for has come, unless it was stopped before."""

    __slots__ = ("_at", "_loop", "_ring", "_timer", "_timer_at")

    def __init__(self, ring: Callable[[], None], loop: Timers | None = None) -> None:
        """`loop`: the running one, unless a test brings its own."""
        self._loop = loop or asyncio.get_running_loop()
        self._ring = ring
        self._at: float | None = None
        self._timer: Timer | None = None
        self._timer_at = 0.0

    def set(self, at: float) -> None:
        """On the loop's clock."""
        self._at = at
        if self._timer is None:
            self._wind(at)
        elif at < self._timer_at:
            self._timer.cancel()
            self._wind(at)

    def stop(self) -> None:
        """Do not ring. The loop's timer stays for the next `set`."""
        self._at = None

    def close(self) -> None:
        """Nothing of it is left in the loop."""
        self._at = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wind(self, at: float) -> None:
        self._timer_at = at
        self._timer = self._loop.call_at(at, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._at is None:
            return
        if self._loop.time() < self._at:
            self._wind(self._at)
            return
        self._at = None
        self._ring()
