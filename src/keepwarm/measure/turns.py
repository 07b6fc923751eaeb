"""What a turn is called and what it should have found cached. Arithmetic only."""

from __future__ import annotations

from typing import Literal

TurnClass = Literal["warm", "cold"]

COLD_BORDER_TOKENS = 20_480
"""More uncached tokens than this are a cold turn, however long the prompt is."""

COLD_BORDER_SHARE = 0.1
"""… or more than this share of the prompt, where that is fewer,"""

COLD_BORDER_LEAST_TOKENS = 512
"""… but never fewer than this: reading so little is never long."""


def classify(*, prompt_tokens: int, cached_tokens: int) -> TurnClass:
    """By what had to be read, never by the age of the session."""
    share = int(prompt_tokens * COLD_BORDER_SHARE)
    border = max(COLD_BORDER_LEAST_TOKENS, min(COLD_BORDER_TOKENS, share))
    return "cold" if prompt_tokens - cached_tokens > border else "warm"


def expected_cached_tokens(*, previous_tokens: int, block_size: int) -> int:
    """The least a turn must find cached after a turn of `previous_tokens`, prompt and answer together.

    Only full blocks are kept; one more block is allowed for, because the answer's last token is
    sampled and never computed.
    """
    return max(0, previous_tokens // block_size * block_size - block_size)
