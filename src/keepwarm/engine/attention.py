"""Attention over paged KV, called once a layer by `transformers`' own model definitions.

One step is one flat batch: rows of many sequences end to end. Everything that depends on the step
(which keys a row reads, where its KV goes, masks) is laid out once in a `StepAttention` by
`step_layout`; a layer only computes. Masks are avoided: a chunk reads what came before it without a
mask and itself causally, and the parts are merged by the logarithm of their softmax sums.

Shapes: rows of a step T, query heads H, key heads G, R = H / G, head size D.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch

from keepwarm.core.errors import BadModel, InvariantBroken
from keepwarm.engine.kv_pools import KvPools, LayerPool

ATTENTION_NAME: Final = "keepwarm_paged"

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
"""(query, key, value, dropout, is_causal, *, attn_mask, scale) -> (output, log of the softmax sum).

Takes (batch, heads, rows, D) with any strides but the last; heads of keys may be fewer. Its output lies
in memory as (batch, rows, heads, D).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Keys that lie together: pool rows [start, end)."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gather:
    """Keys in scattered blocks, copied together first: `skip` rows of the first block are not read."""

    blocks: torch.Tensor  # (num_blocks,) int64
    skip: int
    num_rows: int


Keys = View | Gather


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Rows [first, last) of the batch, all of one sequence, and the keys they read.

    `past`: read by every row. `causal`: row i also reads the piece's own rows up to i; a piece without it
    is a single row. With `mask` (rows, keys) there is exactly one `past` and no `causal`.
    """

    first: int
    last: int
    past: tuple[Keys, ...]
    causal: bool
    mask: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KvWrites:
    """Where the step's own KV goes: long stretches by slices, the other rows by index."""

    stretches: tuple[tuple[int, int, int], ...]
    """(first row of the batch, row after the last, first row of the pool)"""
    rows: torch.Tensor | None  # (n,) of the batch
    pool_rows: torch.Tensor | None  # (n,) of the pool


class LayerCall(Protocol):
    """What `transformers` calls through, once a layer."""

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        window_tokens: int | None,
    ) -> torch.Tensor:
        """Take (H, T, D), (G, T, D), (G, T, D), rotary applied; return (T, H, D)."""


class NothingLeftToCompute(Exception):
    """Ends a forward pass whose last KV is written and of which no row is sampled."""


class StepAttention:
    """One step's attention: writes the new KV, then attends piece by piece."""

    def __init__(
        self,
        *,
        pools: KvPools,
        writes: Mapping[int | None, KvWrites],
        pieces: Mapping[int | None, Sequence[Piece]],
        samples: bool,
    ) -> None:
        self._pools = pools
        self._writes = writes
        self._pieces = pieces
        """Both by window size in tokens; None: full attention."""
        self._last_needed_layer = pools.num_layers if samples else pools.num_layers - 1

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        window_tokens: int | None,
    ) -> torch.Tensor:
        pool = self._pools.layer(layer)
        writes = self._writes[window_tokens]
        _write(writes, pool.key_rows, key.transpose(0, 1))
        _write(writes, pool.value_rows, value.transpose(0, 1))
        if layer == self._last_needed_layer:
            raise NothingLeftToCompute
        num_heads, num_rows, head_dim = query.shape
        output = query.new_empty(num_rows, num_heads, head_dim)
        by_key_head = (num_rows, key.shape[0], 1, -1, head_dim)  # (T, G, 1, R, D), as keys are kept
        token_queries, token_outputs = query.transpose(0, 1).reshape(by_key_head), output.view(by_key_head)
        for piece in self._pieces[window_tokens]:
            first, last = piece.first, piece.last
            if piece.mask is None and not piece.causal:
                token_outputs[first].copy_(self._attend_past(piece, pool, token_queries[first], scale)[0])
                continue
            rows = slice(first, last)
            part = self._attend_chunk(piece, pool, query[:, rows], key[:, rows], value[:, rows], scale)
            output[rows].copy_(part.transpose(0, 1))
        return output

    def _attend_chunk(
        self,
        piece: Piece,
        pool: LayerPool,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:  # (H, n, D)
        if piece.mask is not None:
            keys, values = self._fetch(pool, piece.past[0])
            return _attend_masked(query, keys, values, piece.mask, scale)
        own = _attend_causally(query, key, value, scale)
        if not piece.past:
            return own[0]
        # The R query heads of a key head become rows, so that each key is read once.
        folded = query.reshape(key.shape[0], 1, -1, query.shape[2])
        past = self._attend_past(piece, pool, folded, scale)
        return _merge((past[0].reshape(query.shape), past[1].reshape(query.shape[:2])), own)[0]

    def _attend_past(self, piece: Piece, pool: LayerPool, query: torch.Tensor, scale: float) -> Partial:
        """Every row of `query` (G, 1, n, D) reads all keys of `piece.past`."""
        merged: Partial | None = None
        for where in piece.past:
            keys, values = self._fetch(pool, where)
            output, log_sum = _flash(query, keys, values, 0.0, False, scale=scale)
            merged = (output, log_sum) if merged is None else _merge(merged, (output, log_sum))
        if merged is None:
            raise InvariantBroken("a piece of a step reads no keys")
        return merged

    def _fetch(self, pool: LayerPool, where: Keys) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values (G, 1, n, D): views of the pool where they lie together, else copies."""
        if isinstance(where, View):
            length = where.end - where.start
            return pool.keys.narrow(2, where.start, length), pool.values.narrow(2, where.start, length)
        return self._pools.gather_keys(pool, where), self._pools.gather_values(pool, where)


def _write(writes: KvWrites, pool_rows: torch.Tensor, new: torch.Tensor) -> None:
    for first, last, pool_first in writes.stretches:
        pool_rows[pool_first : pool_first + last - first].copy_(new[first:last])
    if writes.rows is not None and writes.pool_rows is not None:
        pool_rows.index_copy_(0, writes.pool_rows, new.index_select(0, writes.rows))


Partial = tuple[torch.Tensor, torch.Tensor]
"""Attention over some of the keys, (.., n, D), and the log of its softmax sums, (.., n)."""


def _attend_causally(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> Partial:
    output, log_sum = _flash(query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0), 0.0, True, scale=scale)
    return output[0], log_sum[0]


def _attend_masked(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    keys, values = keys.transpose(0, 1), values.transpose(0, 1)  # (1, G, n, D)
    output, _ = _flash(query.unsqueeze(0), keys, values, 0.0, False, attn_mask=mask, scale=scale)
    result: torch.Tensor = output[0]
    return result


def _merge(one: Partial, other: Partial) -> Partial:
    """Attention over the keys of both: weights are each part's share of the softmax sum."""
    share = torch.sigmoid(other[1] - one[1]).unsqueeze(-1).to(one[0].dtype)
    return torch.lerp(one[0], other[0], share), torch.logaddexp(one[1], other[1])


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    step: LayerCall | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """The function `transformers` calls in place of its own attention: (1, H, T, D) in, (1, T, H, D) out."""
    if softcap is not None or s_aux is not None:
        raise BadModel("attention with capped scores or sinks is not supported")
    layer = getattr(module, "layer_idx", None)
    if step is None or not isinstance(layer, int):
        raise BadModel(f"{type(module).__name__} does not say which layer it is, or hands no arguments on")
    return step.attend(layer, query[0], key[0], value[0], scaling, sliding_window).unsqueeze(0), None


def register_attention() -> None:
    """Make `ATTENTION_NAME` known to `transformers`; it builds no mask for a name it has no mask for."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, paged_attention)
