"""Running digests of token sequences: what the scripted executor stores where a model stores KV.

d_i = a * d_(i-1) + token_i + c, modulo 2^62. A digest depends on every token up to its own, and
a thousand of them cost a few array operations: unrolled, d_i is a^i * (d_0 + the sum of
a^-k * (token_k + c) over 1 <= k <= i), and an odd `a` has an inverse modulo a power of two.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from keepwarm.core.ids import TokenIds

_FACTOR = 6364136223846793005  # Knuth's MMIX generator
_SUMMAND = 1442695040888963407
_MODULUS = 1 << 64  # what unsigned arithmetic does by itself; the mask cuts its results down
_MASK = (1 << 62) - 1


class Digester:
    """Keeps the powers it has needed so far."""

    def __init__(self) -> None:
        self._powers = _powers_of(_FACTOR, 0)
        self._inverses = _powers_of(_FACTOR, 0)

    def advance(self, before: int, tokens: TokenIds) -> npt.NDArray[np.int64]:
        """The digest after each of `tokens`, where `before` is the one before the first."""
        count = len(tokens)
        if count > len(self._powers):
            self._powers = _powers_of(_FACTOR, 2 * count)
            self._inverses = _powers_of(pow(_FACTOR, -1, _MODULUS), 2 * count)
        terms = (tokens.astype(np.uint64) + np.uint64(_SUMMAND)) * self._inverses[:count]
        sums = np.cumsum(terms, dtype=np.uint64) + np.uint64(before)
        digests: npt.NDArray[np.uint64] = self._powers[:count] * sums
        return np.bitwise_and(digests, np.uint64(_MASK)).astype(np.int64)


def advance_one(before: int, token: int) -> int:
    """What `advance` gives for one token, without arrays."""
    return (before * _FACTOR + token + _SUMMAND) & _MASK


def _powers_of(base: int, count: int) -> npt.NDArray[np.uint64]:
    """base^1 ... base^count, modulo 2^64."""
    return np.cumprod(np.full(count, base, dtype=np.uint64), dtype=np.uint64)
