"""A plan's works as one flat batch: ids, positions, where KV goes and which keys each row reads.

Done once a step, before the first layer. Decides what is read in place and what is copied together.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from keepwarm.core.step import SequenceWork
from keepwarm.engine.attention import Gather, Keys, KvWrites, Piece, StepAttention, View
from keepwarm.engine.kv_pools import KvPools
from keepwarm.engine.sequences import BlockTable, SequenceState

MIN_VIEW_TOKENS: Final = 128
"""Shorter stretches are copied together: below this a call of its own costs more than the copy."""

MAX_PARTS: Final = 8
"""A piece whose keys lie in more stretches than this has them all copied together."""

MIN_SLICE_ROWS: Final = 8
"""Fewer rows than this are written by index, all sequences at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """What a model is called with."""

    input_ids: torch.Tensor  # (1, T) int64
    position_ids: torch.Tensor  # (1, T) int64
    sampled_rows: torch.Tensor  # (num_sampled,) int64, in the order of the works that sample
    attention: StepAttention


class StepLayout:
    """Lays out steps for one model. `windows` are the window sizes of its layers, None for full."""

    def __init__(
        self, *, pools: KvPools, block_size: int, windows: Collection[int | None], dtype: torch.dtype
    ) -> None:
        self._pools = pools
        self._block_size = block_size
        self._windows = frozenset(windows)
        self._dtype = dtype

    def inputs(self, works: Sequence[tuple[SequenceWork, SequenceState]]) -> StepInputs:
        """Everything the model needs for these works; not empty."""
        firsts = np.cumsum([0, *(work.end - work.start for work, _ in works)]).tolist()
        placed = [(first, work, state) for first, (work, state) in zip(firsts, works, strict=False)]
        ids = np.concatenate([state.tokens(work.start, work.end) for work, state in works])
        positions = np.concatenate([np.arange(work.start, work.end) for work, _ in works])
        sampled = [first + work.end - work.start - 1 for first, work, _ in placed if work.sample]
        return StepInputs(
            input_ids=torch.from_numpy(ids.astype(np.int64)).unsqueeze(0),
            position_ids=torch.from_numpy(positions).unsqueeze(0),
            sampled_rows=torch.tensor(sampled, dtype=torch.int64),
            attention=StepAttention(
                pools=self._pools,
                writes=self._writes_by_window(placed),
                samples=bool(sampled),
                pieces={
                    window: [
                        self._piece(first, work, _table(state, window), window)
                        for first, work, state in placed
                    ]
                    for window in self._windows
                },
            ),
        )

    # --- where new KV goes ---

    def _writes_by_window(
        self, placed: Sequence[tuple[int, SequenceWork, SequenceState]]
    ) -> dict[int | None, KvWrites]:
        tables = [(first, work, state.table) for first, work, state in placed]
        writes = self._writes(tables)
        if any(state.window_table is not None for _, _, state in placed):
            in_windows = self._writes([(first, work, _table(state, 0)) for first, work, state in placed])
            return {window: writes if window is None else in_windows for window in self._windows}
        return dict.fromkeys(self._windows, writes)

    def _writes(self, placed: Sequence[tuple[int, SequenceWork, BlockTable]]) -> KvWrites:
        stretches: list[tuple[int, int, int]] = []
        rows: list[int] = []
        pool_rows: list[int] = []
        for first, work, table in placed:
            row = first
            for start, end in table.stretches(work.start, work.end):
                if end - start >= MIN_SLICE_ROWS:
                    stretches.append((row, row + end - start, start))
                else:
                    rows.extend(range(row, row + end - start))
                    pool_rows.extend(range(start, end))
                row += end - start
        return KvWrites(
            stretches=tuple(stretches),
            rows=torch.tensor(rows) if rows else None,
            pool_rows=torch.tensor(pool_rows) if rows else None,
        )

    # --- which keys are read ---

    def _piece(self, first: int, work: SequenceWork, table: BlockTable, window: int | None) -> Piece:
        num_rows = work.end - work.start
        oldest = 0 if window is None else max(0, work.start - window + 1)
        if num_rows == 1:
            past = self._keys(table, oldest, work.end)
            return Piece(first=first, last=first + 1, past=past, causal=False)
        if window is None or work.end <= window:
            past = self._keys(table, 0, work.start)
            return Piece(first=first, last=first + num_rows, past=past, causal=True)
        return Piece(
            first=first,
            last=first + num_rows,
            past=(self._keys_as_one(table, oldest, work.end),),
            causal=False,
            mask=self._window_mask(work, oldest, window),
        )

    def _window_mask(self, work: SequenceWork, oldest: int, window: int) -> torch.Tensor:
        """0 where position p reads key k, p - window < k <= p, else -inf: (rows, keys)."""
        rows = torch.arange(work.start, work.end).unsqueeze(1)
        keys = torch.arange(oldest, work.end).unsqueeze(0)
        hidden = (keys > rows) | (keys <= rows - window)
        return torch.zeros(hidden.shape, dtype=self._dtype).masked_fill_(hidden, float("-inf"))

    def _keys(self, table: BlockTable, start: int, end: int) -> tuple[Keys, ...]:
        """Tokens [start, end) in order: long stretches as views, neighbouring short ones copied together."""
        if start >= end:
            return ()
        stretches = table.stretches(start, end)
        if len(stretches) == 1:
            return (View(start=stretches[0][0], end=stretches[0][1]),)
        parts: list[Keys] = []
        token = gather_from = start
        for first, last in stretches:
            if last - first >= MIN_VIEW_TOKENS:
                if gather_from < token:
                    parts.append(self._gather(table, gather_from, token))
                parts.append(View(start=first, end=last))
                gather_from = token + last - first
            token += last - first
        if gather_from < end:
            parts.append(self._gather(table, gather_from, end))
        return tuple(parts) if len(parts) <= MAX_PARTS else (self._gather(table, start, end),)

    def _keys_as_one(self, table: BlockTable, start: int, end: int) -> Keys:
        stretches = table.stretches(start, end)
        if len(stretches) == 1:
            return View(start=stretches[0][0], end=stretches[0][1])
        return self._gather(table, start, end)

    def _gather(self, table: BlockTable, start: int, end: int) -> Gather:
        first_block = start // self._block_size
        last_block = -(-end // self._block_size)
        return Gather(
            blocks=torch.from_numpy(table.blocks(first_block, last_block).copy()),
            skip=start - first_block * self._block_size,
            num_rows=end - start,
        )


def _table(state: SequenceState, window: int | None) -> BlockTable:
    """Where layers with this window have their blocks."""
    return state.table if window is None or state.window_table is None else state.window_table
