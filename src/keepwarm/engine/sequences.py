"""The sequences that hold a slot: their tokens, their blocks, how far they are computed.

Applies what a plan changes and refuses a plan that cannot be right. Knows no tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from keepwarm.core.errors import InvariantBroken
from keepwarm.core.ids import BlockId, BlockIds, RequestId, Slot
from keepwarm.core.sampling import Sampling
from keepwarm.core.step import BlockChange, ExecutorLimits, SequenceStart, SequenceWork, StepPlan

if TYPE_CHECKING:
    from keepwarm.engine.grammar_compiler import TokenMatcher

Run = tuple[int, int]
"""Blocks whose ids follow each other: (first index of the table, number of blocks)."""


class BlockTable:
    """Where one sequence's blocks [first, end) lie. With `in_windows` only the last ones are read."""

    def __init__(
        self, blocks: BlockIds, *, limits: ExecutorLimits, first: int = 0, in_windows: bool = False
    ) -> None:
        self._block_size = limits.layout.block_size
        self._table: BlockIds = np.empty(limits.layout.blocks_for(limits.max_model_len) + 1, dtype=np.int64)
        self.first, self.end = first, first + len(blocks)
        self._table[first : self.end] = blocks
        self._in_windows = in_windows
        self._runs: list[Run] | None = None

    def blocks(self, first: int, end: int) -> BlockIds:
        """A view."""
        return self._table[first:end]

    def set(self, index: int, block: BlockId) -> None:
        """Append the next block or replace one."""
        appended = index == self.end
        self._table[index] = block
        self.end = max(self.end, index + 1)
        if self._runs and appended and block == self._table[index - 1] + 1:
            first, length = self._runs[-1]
            self._runs[-1] = (first, length + 1)
        else:
            self._runs = None

    def stretches(self, start: int, end: int) -> list[tuple[int, int]]:
        """Pool rows of tokens [start, end), as few [first, last) ranges as the table allows."""
        size = self._block_size
        found: list[tuple[int, int]] = []
        for first_index, num_blocks in self._runs_between(start, end):
            low = max(start, first_index * size)
            high = min(end, (first_index + num_blocks) * size)
            if low < high:
                shift = (int(self._table[first_index]) - first_index) * size
                found.append((low + shift, high + shift))
        return found

    def _runs_between(self, start: int, end: int) -> list[Run]:
        """Stretches of ids that follow each other. Those of the whole table are kept until a block breaks
        the pattern; of a table that is read in windows, only what is asked for is looked at."""
        if self._in_windows:
            return self._find_runs(start // self._block_size, -(-end // self._block_size))
        if self._runs is None:
            self._runs = self._find_runs(0, self.end)
        return self._runs

    def _find_runs(self, first: int, end: int) -> list[Run]:
        breaks = np.flatnonzero(np.diff(self._table[first:end]) != 1) + 1
        edges = [first, *(breaks + first).tolist(), end]
        return [(edges[i], edges[i + 1] - edges[i]) for i in range(len(edges) - 1)]


class SequenceState:
    """One slot's tokens and block tables. Tokens [0, num_known) are known, [0, num_computed) have KV."""

    def __init__(self, start: SequenceStart, limits: ExecutorLimits, seed: int) -> None:
        self.request_id: RequestId = start.request_id
        self.sampling: Sampling = start.sampling
        self.seed = seed
        self.matcher: TokenMatcher | None = None
        """Its place in its grammar, where it has one."""
        self.num_known = len(start.tokens)
        self.num_computed: int | None = None
        """None until the first work says what was cached."""
        self._tokens = np.empty(limits.max_model_len + 1, dtype=np.int32)
        self._tokens[: self.num_known] = start.tokens
        self.table = BlockTable(start.blocks, limits=limits)
        self.window_table: BlockTable | None = None
        """Of the layers with a window, where they have blocks of their own."""
        if start.window_blocks is not None:
            self.window_table = BlockTable(
                start.window_blocks, first=start.window_first, in_windows=True, limits=limits
            )

    @property
    def num_blocks(self) -> int:
        return self.table.end

    @property
    def blocks(self) -> BlockIds:
        """The block table, (num_blocks,); a view."""
        return self.table.blocks(0, self.table.end)

    def tokens(self, start: int, end: int) -> npt.NDArray[np.int32]:
        return self._tokens[start:end]

    def append_token(self, token: int) -> None:
        self._tokens[self.num_known] = token
        self.num_known += 1


class SequenceTable:
    """All slots. Every wrong plan ends here as `InvariantBroken`, naming step, slot and number."""

    def __init__(self, limits: ExecutorLimits) -> None:
        self._limits = limits
        self._slots: dict[Slot, SequenceState] = {}

    def __getitem__(self, slot: Slot) -> SequenceState:
        return self._slots[slot]

    def apply(self, plan: StepPlan, draw_seed: Sequence[int]) -> None:
        """Apply ended, starts and changes, then check the works. `draw_seed[i]` seeds `plan.starts[i]`."""
        for slot in plan.ended:
            if self._slots.pop(slot, None) is None:
                raise InvariantBroken(f"step {plan.step_id} ends slot {slot}, which is free")
        for start, seed in zip(plan.starts, draw_seed, strict=True):
            self._start(plan, start, seed)
        for change in plan.changes:
            self._change(plan, change)
        seen: set[Slot] = set()
        for work in plan.works:
            self._check_work(plan, work)
            if work.slot in seen:
                raise InvariantBroken(f"step {plan.step_id} works on slot {work.slot} twice")
            seen.add(work.slot)

    def _start(self, plan: StepPlan, start: SequenceStart, seed: int) -> None:
        limits, name = self._limits, f"step {plan.step_id} starts slot {start.slot}"
        if not 0 <= start.slot < limits.max_num_seqs:
            raise InvariantBroken(f"{name}, of {limits.max_num_seqs}")
        if start.slot in self._slots:
            raise InvariantBroken(f"{name}, which {self._slots[start.slot].request_id} holds")
        if not 0 < len(start.tokens) <= limits.max_model_len:
            raise InvariantBroken(f"{name} with {len(start.tokens)} tokens of {limits.max_model_len}")
        if not 0 <= int(start.tokens.min()) <= int(start.tokens.max()) < limits.vocab_size:
            raise InvariantBroken(f"{name} with a token id outside the vocabulary of {limits.vocab_size}")
        if len(start.blocks) > limits.layout.blocks_for(limits.max_model_len):
            raise InvariantBroken(f"{name} with {len(start.blocks)} blocks, more than one sequence can use")
        for block in (start.blocks.min(initial=0), start.blocks.max(initial=0)):
            self._check_block(name, block)
        self._check_window_start(name, start)
        self._slots[start.slot] = SequenceState(start, limits, seed)

    def _check_window_start(self, name: str, start: SequenceStart) -> None:
        if (start.window_blocks is not None) != bool(self._limits.num_window_blocks):
            raise InvariantBroken(f"{name}, and {self._limits.num_window_blocks} window blocks are there")
        if start.window_blocks is None:
            return
        last = start.window_first + len(start.window_blocks)
        if not 0 <= start.window_first <= last <= self._limits.layout.blocks_for(self._limits.max_model_len):
            raise InvariantBroken(f"{name} with window blocks [{start.window_first}, {last})")
        for block in (start.window_blocks.min(initial=0), start.window_blocks.max(initial=0)):
            self._check_block(name, block, in_windows=True)

    def _change(self, plan: StepPlan, change: BlockChange) -> None:
        kind = "window block" if change.in_windows else "block"
        name = f"step {plan.step_id} changes {kind} {change.index} of slot {change.slot}"
        state = self._slots.get(change.slot)
        if state is None:
            raise InvariantBroken(f"{name}, which is free")
        most = self._limits.layout.blocks_for(self._limits.max_model_len)
        table = state.window_table if change.in_windows else state.table
        if table is None or not table.first <= change.index <= table.end or change.index >= most:
            held = 0 if table is None else table.end
            raise InvariantBroken(f"{name}, which has {held} blocks of at most {most}")
        self._check_block(name, change.block, in_windows=change.in_windows)
        table.set(change.index, change.block)

    def _check_block(self, name: str, block: BlockId, *, in_windows: bool = False) -> None:
        limits = self._limits
        num_blocks = limits.num_window_blocks if in_windows else limits.num_blocks
        if not 0 <= block < num_blocks:
            kind = "window block" if in_windows else "block"
            raise InvariantBroken(f"{name}: {kind} {block} of {num_blocks}")

    def _check_window(self, name: str, work: SequenceWork, table: BlockTable) -> None:
        layout = self._limits.layout
        first = max(0, work.start - (layout.window_tokens or 1) + 1) // layout.block_size
        if not table.first <= first or layout.blocks_for(work.end) > table.end:
            raise InvariantBroken(f"{name}, which has only the window blocks [{table.first}, {table.end})")

    def _check_work(self, plan: StepPlan, work: SequenceWork) -> None:
        name = f"step {plan.step_id} computes [{work.start}, {work.end}) of slot {work.slot}"
        state = self._slots.get(work.slot)
        if state is None:
            raise InvariantBroken(f"{name}, which is free")
        if not 0 <= work.start < work.end <= state.num_known:
            raise InvariantBroken(f"{name}, which has {state.num_known} tokens")
        if state.num_computed is not None and work.start > state.num_computed:
            raise InvariantBroken(f"{name}, of which only {state.num_computed} are computed")
        if work.end > state.num_blocks * self._limits.layout.block_size:
            raise InvariantBroken(f"{name}, which has only {state.num_blocks} blocks")
        if state.window_table is not None:
            self._check_window(name, work, state.window_table)
        if work.sample and work.end != state.num_known:
            raise InvariantBroken(f"{name} and samples, but {state.num_known} tokens are known")
