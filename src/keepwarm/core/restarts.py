"""How often, and how soon, a process that was lost is started again. Decides only; waits for nothing."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartLimits:
    """A process that is lost again and again is broken, and restarting it hides why."""

    first_delay_s: float = 1.0
    """Doubles with each loss within the window."""
    max_delay_s: float = 30.0
    max_losses: int = 5
    window_s: float = 600.0


class Restarts:
    """The losses of one process."""

    def __init__(self, limits: RestartLimits) -> None:
        self.limits = limits
        self._lost_at_s: deque[float] = deque()

    def delay_after_loss(self, now_s: float) -> float | None:
        """Count a loss; seconds to wait before the next start, or None: leave it."""
        while self._lost_at_s and self._lost_at_s[0] <= now_s - self.limits.window_s:
            self._lost_at_s.popleft()
        self._lost_at_s.append(now_s)
        num_losses = len(self._lost_at_s)
        if num_losses >= self.limits.max_losses:
            return None
        return float(min(self.limits.max_delay_s, self.limits.first_delay_s * 2 ** (num_losses - 1)))
