"""Draws the next token from a row of logits. Knows no sequences and no blocks.

A draw is an exponential race: token i arrives after e_i / p_i, and the first one wins. The e_i come
from (seed, token position) alone, so a draw is the same whatever runs beside it and after a
preemption, and a last-digit difference of the logits (a cached prefix, another batch) moves a winner
only where two arrive together. Inverting a cumulated distribution would move it far more often.
Source: exponential clocks, the same law as the Gumbel-max trick.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from keepwarm.core.errors import InvariantBroken
from keepwarm.core.sampling import Sampling, TokenLogprobs

_FIRST_LOOK: Final = 1024
"""Tokens that are sorted first: nearly always enough for `top_p`, and far cheaper than the vocabulary."""

SEED_BITS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One token to choose: it will be number `position` of its sequence."""

    sampling: Sampling
    seed: int
    position: int
    name: str
    """Whom to name when the logits are wrong."""
    allowed: torch.Tensor | None = None
    """Which tokens may be drawn, (vocab_size,) bool, at least one; None: all. The log
    probabilities that are reported stay the model's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnToken:
    token: int
    logprobs: TokenLogprobs | None


def draw_tokens(logits: torch.Tensor, draws: Sequence[Draw]) -> list[DrawnToken]:
    """One token a row of (len(draws), vocab_size). Raises `InvariantBroken` where logits are not numbers."""
    best_values, best_tokens = logits.max(dim=-1)
    for finite, draw in zip(torch.isfinite(best_values).tolist(), draws, strict=True):
        if not finite:
            raise InvariantBroken(f"the model gave no finite logits for token {draw.position} of {draw.name}")
    greedy: list[int] = best_tokens.tolist()
    drawn: list[DrawnToken] = []
    for row, (best, draw) in enumerate(zip(greedy, draws, strict=True)):
        token = _choose(logits[row], best, draw)
        drawn.append(
            DrawnToken(token=token, logprobs=_logprobs(logits[row], token, draw.sampling.num_logprobs))
        )
    return drawn


def race_times(seed: int, position: int, vocab_size: int) -> npt.NDArray[np.float32]:
    """Standard exponential numbers, (vocab_size,), that choose token `position` under this seed."""
    key = np.array([seed % (1 << SEED_BITS), position], dtype=np.uint64)
    times = np.random.Generator(np.random.Philox(key=key)).standard_exponential(vocab_size, dtype=np.float32)
    return np.maximum(times, np.finfo(np.float32).tiny)


def _choose(logits: torch.Tensor, best: int, draw: Draw) -> int:
    if draw.allowed is not None:
        logits = logits.masked_fill(~draw.allowed, float("-inf"))
        best = int(logits.argmax())
    return best if draw.sampling.temperature == 0.0 else _draw(logits.float(), draw)


def _draw(logits: torch.Tensor, draw: Draw) -> int:
    """Temperature, top_k, top_p, min_p, then the draw, on one row (vocab_size,)."""
    sampling = draw.sampling
    # Shifted first: a tiny temperature would overflow what is not the best token's difference.
    probabilities = torch.softmax((logits - logits.max()) / max(sampling.temperature, 1e-6), dim=-1)
    times = race_times(draw.seed, draw.position, probabilities.shape[0])
    if sampling.top_k <= 0 and sampling.top_p >= 1.0 and sampling.min_p <= 0.0:
        return _first(probabilities, times)
    kept, tokens = _kept(probabilities, sampling)
    return int(tokens[_first(kept, times[tokens.numpy()])])


def _first(weights: torch.Tensor, times: npt.NDArray[np.float32]) -> int:
    """Who arrives first; in numpy, since the work is too small to share between threads."""
    return int(np.argmax(weights.numpy() / times))


def _kept(probabilities: torch.Tensor, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities that survive the filters, largest first, not summing to 1, and their tokens."""
    vocab_size = probabilities.shape[0]
    look = min(sampling.top_k, vocab_size) if sampling.top_k > 0 else min(_FIRST_LOOK, vocab_size)
    kept, tokens = probabilities.topk(look)
    if sampling.top_k <= 0 and not _looked_far_enough(kept, sampling):
        kept, tokens = probabilities.sort(descending=True)
    if sampling.top_p < 1.0:
        before = kept.cumsum(0) - kept
        kept = kept[: max(1, int((before < sampling.top_p * _mass(kept, sampling)).sum()))]
    if sampling.min_p > 0.0:
        kept = kept[: max(1, int((kept >= sampling.min_p * kept[0]).sum()))]
    return kept, tokens[: kept.shape[0]]


def _mass(kept: torch.Tensor, sampling: Sampling) -> float:
    """What `top_p` is a share of: what `top_k` left, or everything."""
    return float(kept.sum()) if sampling.top_k > 0 else 1.0


def _looked_far_enough(kept: torch.Tensor, sampling: Sampling) -> bool:
    """Whether the first look holds every token that `top_p` or `min_p` can keep."""
    by_top_p = sampling.top_p < 1.0 and float(kept.sum()) >= sampling.top_p
    by_min_p = sampling.min_p > 0.0 and float(kept[-1]) < sampling.min_p * float(kept[0])
    return by_top_p or by_min_p


def _logprobs(logits: torch.Tensor, token: int, num_top: int | None) -> TokenLogprobs | None:
    """Of the model's own distribution, before temperature."""
    if num_top is None:
        return None
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    values, tokens = logprobs.topk(min(num_top, logprobs.shape[0]))
    return TokenLogprobs(
        logprob=float(logprobs[token]),
        top=tuple(zip(tokens.tolist(), values.tolist(), strict=True)),
    )
