"""Whether copying blocks up takes less time than reading their tokens again, by what was measured."""

from __future__ import annotations

from dataclasses import dataclass, field

_REMEMBERED = 0.9
"""Of a rate's past, at each new sample: the last ten or so count."""
_TRIED_ONE_IN = 16
"""Of promotions that do not seem to pay: a bad first measurement would else never be corrected."""
_READING_SHARE = 0.5
"""Of a step's tokens, at least; steps that mostly write answers say nothing of how fast prompts are read."""


@dataclass(slots=True)
class Rate:
    """Units a second, an average that follows; larger samples weigh more."""

    _units: float = 0.0
    _seconds: float = 0.0

    def add(self, units: float, seconds: float) -> None:
        """One sample; one without time or units says nothing."""
        if units > 0 and seconds > 0:
            self._units = _REMEMBERED * self._units + units
            self._seconds = _REMEMBERED * self._seconds + seconds

    def seconds_for(self, units: float) -> float | None:
        """None: nothing was measured yet."""
        return units * self._seconds / self._units if self._units else None


@dataclass(slots=True)
class CopyCosts:
    """What one rank's device has shown so far."""

    always: bool = False
    """Copying pays whatever was measured."""
    _reading: Rate = field(default_factory=Rate)  # tokens
    _promoting: Rate = field(default_factory=Rate)  # bytes
    _num_skipped: int = 0

    def computed(self, *, num_tokens: int, num_read: int, compute_s: float) -> None:
        """A step of `num_tokens`, of which `num_read` belong to chunks of more than one."""
        if num_read >= _READING_SHARE * num_tokens:
            self._reading.add(num_tokens, compute_s)

    def promoted(self, *, num_bytes: int, copy_s: float) -> None:
        """A copy has ended."""
        self._promoting.add(num_bytes, copy_s)

    def pays(self, *, num_tokens: int, num_bytes: int) -> bool:
        """Whether to copy up; yes where it cannot be told."""
        read_s = self._reading.seconds_for(num_tokens)
        copy_s = self._promoting.seconds_for(num_bytes)
        if self.always or read_s is None or copy_s is None or copy_s <= read_s:
            return True
        self._num_skipped += 1
        return self._num_skipped % _TRIED_ONE_IN == 0
