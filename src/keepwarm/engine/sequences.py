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


class SequenceState:
    """One slot's tokens and block table. Tokens [0, num_known) are known, [0, num_computed) have KV."""

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
        self._table: BlockIds = np.empty(limits.layout.blocks_for(limits.max_model_len) + 1, dtype=np.int64)
        self.num_blocks = len(start.blocks)
        self._table[: self.num_blocks] = start.blocks
        self._runs: list[Run] | None = None

    @property
    def blocks(self) -> BlockIds:
        """The block table, (num_blocks,); a view."""
        return self._table[: self.num_blocks]

    def tokens(self, start: int, end: int) -> npt.NDArray[np.int32]:
        return self._tokens[start:end]

    def append_token(self, token: int) -> None:
        self._tokens[self.num_known] = token
        self.num_known += 1

    def set_block(self, index: int, block: BlockId) -> None:
        """Append the next block or replace one."""
        appended = index == self.num_blocks
        self._table[index] = block
        self.num_blocks = max(self.num_blocks, index + 1)
        if self._runs and appended and block == self._table[index - 1] + 1:
            first, length = self._runs[-1]
            self._runs[-1] = (first, length + 1)
        else:
            self._runs = None

    def runs(self) -> list[Run]:
        """The table as stretches of ids that follow each other; kept until a block breaks the pattern."""
        if self._runs is None:
            breaks = np.flatnonzero(np.diff(self.blocks) != 1) + 1
            edges = [0, *breaks.tolist(), self.num_blocks]
            self._runs = [(edges[i], edges[i + 1] - edges[i]) for i in range(len(edges) - 1)]
        return self._runs


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
        self._slots[start.slot] = SequenceState(start, limits, seed)

    def _change(self, plan: StepPlan, change: BlockChange) -> None:
        name = f"step {plan.step_id} changes block {change.index} of slot {change.slot}"
        state = self._slots.get(change.slot)
        if state is None:
            raise InvariantBroken(f"{name}, which is free")
        most = self._limits.layout.blocks_for(self._limits.max_model_len)
        if not 0 <= change.index <= state.num_blocks or change.index >= most:
            raise InvariantBroken(f"{name}, which has {state.num_blocks} blocks of at most {most}")
        self._check_block(name, change.block)
        state.set_block(change.index, change.block)

    def _check_block(self, name: str, block: BlockId) -> None:
        if not 0 <= block < self._limits.num_blocks:
            raise InvariantBroken(f"{name}: block {block} of {self._limits.num_blocks}")

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
        if work.sample and work.end != state.num_known:
            raise InvariantBroken(f"{name} and samples, but {state.num_known} tokens are known")
