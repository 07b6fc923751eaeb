"""What a scheduler is told at start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Demote = Literal["turn_end", "eviction"]
Promote = Literal["cheaper", "always"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """The policies of one rank."""

    max_num_batched_tokens: int
    """Tokens a step computes at most; a long prompt is read in chunks of what is left of it."""
    output_reserve_tokens: int = 256
    """Room for output held at admission, and added each time it is used up."""
    prefix_cache: bool = True
    demote: Demote = "turn_end"
    """When blocks are copied down to host memory. "turn_end": beside the steps, while nothing is copied
    up. Whatever was not copied down by then is when it is evicted, which that step waits for."""
    promote: Promote = "cheaper"
    """"cheaper": not where reading again is predicted to take less time than copying up. "always" is for
    whoever compares."""
    copy_chunk_bytes: int = 64_000_000
    """What one copy moves at most: others, and whoever waits for any copy's end, wait no longer."""
