"""How to sample, as bodies say it: the same words in every dialect."""

from __future__ import annotations

from keepwarm.core.sampling import Sampling
from keepwarm.dialects.body import JsonBody

_MAX_SEED = 2**63 - 1


def read_sampling(fields: JsonBody, *, max_temperature: float, num_logprobs: int | None = None) -> Sampling:
    """Raises `BadField`. Where a dialect has no word for something, other servers' is taken."""
    temperature = fields.number("temperature", low=0, high=max_temperature)
    top_p = fields.number("top_p", low=0, high=1)
    top_k = max(0, fields.integer("top_k", low=-1) or 0)  # -1 is how some clients say "off"
    if top_p == 0:  # the most likely token alone
        top_p, top_k = 1.0, 1
    return Sampling(
        temperature=1.0 if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
        top_k=top_k,
        min_p=fields.number("min_p", low=0, high=1) or 0.0,
        seed=fields.integer("seed", low=-_MAX_SEED - 1, high=_MAX_SEED),
        num_logprobs=num_logprobs,
    )
