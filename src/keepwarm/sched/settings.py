"""What a scheduler is told at start."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """The policies of one rank."""

    max_num_batched_tokens: int
    """Tokens a step computes at most; a long prompt is read in chunks of what is left of it."""
    output_reserve_tokens: int = 256
    """Room for output held at admission, and added each time it is used up."""
    prefix_cache: bool = True
