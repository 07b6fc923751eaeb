"""How the next token is chosen, and what is said about it."""

from __future__ import annotations

import msgspec


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """Applied in this order: temperature, top_k, top_p, min_p, draw.

    temperature 0 is greedy and ignores the rest. `top_k` 0 and `top_p` 1.0 are off.
    `seed` makes the draws of one request the same whatever runs beside it.
    `num_logprobs` None: none; n: the chosen token's and the n most likely ones' (0 <= n <= 20),
    both of the model's own distribution, before temperature.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    num_logprobs: int | None = None


GREEDY = Sampling(temperature=0.0)


class TokenLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Natural logarithms for one sampled token."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """(token id, logprob), the most likely first."""
