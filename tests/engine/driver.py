"""Plays the scheduler for an executor: several sequences at once, in chunks, on the blocks it likes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from keepwarm.core.ids import BlockId, RequestId, Slot, block_ids, token_ids
from keepwarm.core.sampling import GREEDY, Sampling, TokenLogprobs
from keepwarm.core.step import (
    BlockChange,
    Executor,
    ExecutorLimits,
    SequenceStart,
    SequenceWork,
    StepId,
    StepPlan,
    StepResult,
)


@dataclass(slots=True, kw_only=True)
class Turn:
    """One sequence and what it has generated."""

    prompt: list[int]
    num_tokens: int
    sampling: Sampling = GREEDY
    chunk_tokens: int = 1 << 30
    starts_at_step: int = 0
    output: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    num_computed: int = 0
    num_blocks: int = 0

    @property
    def num_known(self) -> int:
        return len(self.prompt) + len(self.output)

    @property
    def finished(self) -> bool:
        return len(self.output) >= self.num_tokens


class Driver:
    """Blocks in order from one free list, or in a shuffled order. Where layers with a window have blocks of
    their own, each is given to another turn as soon as it is behind its turn's window."""

    def __init__(self, executor: Executor, *, shuffle_seed: int | None = None) -> None:
        self._executor = executor
        self._block_size = executor.limits.layout.block_size
        self._free = list(range(executor.limits.num_blocks))
        if shuffle_seed is not None:
            random.Random(shuffle_seed).shuffle(self._free)
        self._windows = _Windows(executor.limits)
        self._step = 0

    def run(self, turns: Sequence[Turn]) -> list[list[int]]:
        """Every turn to its end, all that have started in each step together; their outputs."""
        slots = {Slot(index): turn for index, turn in enumerate(turns)}
        held: dict[Slot, list[int]] = {slot: [] for slot in slots}
        live: set[Slot] = set()
        first_step = self._step
        ended: list[Slot] = []
        while ended or live or any(not turn.finished for turn in slots.values()):
            starts, changes, works = [], [], []
            for slot, turn in slots.items():
                if turn.finished or turn.starts_at_step > self._step - first_step:
                    continue
                works.append(self._work(slot, turn))
                fresh = self._take(turn, works[-1].end)
                held[slot].extend(fresh)
                in_windows = self._windows.move(slot, works[-1])
                if slot in live:
                    first = len(held[slot]) - len(fresh)
                    changes += [_change(slot, first + i, block) for i, block in enumerate(fresh)]
                    changes += [_change(slot, index, block, in_windows=True) for index, block in in_windows]
                else:
                    windows = [block for _index, block in in_windows] if self._windows else None
                    starts.append(_start(slot, turn, held[slot], windows))
                    live.add(slot)
            self.step(
                StepPlan(step_id=self._next(), ended=ended, starts=starts, changes=changes, works=works),
                slots,
            )
            ended = [slot for slot in live if slots[slot].finished]
            for slot in ended:
                live.discard(slot)
                self._free.extend(held[slot])
                self._windows.end(slot)
        return [turn.output for turn in turns]

    def step(self, plan: StepPlan, slots: dict[Slot, Turn]) -> StepResult:
        self._executor.submit(plan)
        result = self._executor.collect()
        assert result.step_id == plan.step_id
        assert [output.slot for output in result.outputs] == [work.slot for work in plan.works if work.sample]
        for work in plan.works:
            slots[work.slot].num_computed = work.end
        for output in result.outputs:
            slots[output.slot].output.extend(output.tokens)
            slots[output.slot].logprobs.extend(output.logprobs)
        return result

    def _next(self) -> StepId:
        self._step += 1
        return StepId(self._step)

    def _work(self, slot: Slot, turn: Turn) -> SequenceWork:
        start = turn.num_computed
        end = min(turn.num_known, start + turn.chunk_tokens)
        return SequenceWork(slot=slot, start=start, end=end, sample=end == turn.num_known)

    def _take(self, turn: Turn, num_tokens: int) -> list[int]:
        """Blocks that a slot lacks to hold so many tokens."""
        needed = -(-num_tokens // self._block_size) - turn.num_blocks
        fresh = [self._free.pop(0) for _ in range(max(0, needed))]
        turn.num_blocks += len(fresh)
        return fresh


class _Windows:
    """Blocks of the layers with a window: what comes free is taken first."""

    def __init__(self, limits: ExecutorLimits) -> None:
        self._layout = limits.layout
        self._free = list(range(limits.num_window_blocks))
        self._is_apart = bool(self._free)
        self._held: dict[Slot, dict[int, int]] = {}

    def __bool__(self) -> bool:
        return self._is_apart

    def move(self, slot: Slot, work: SequenceWork) -> list[tuple[int, int]]:
        """Free what no token from `work.start` on reads; (index, block) of what the work needs more."""
        if not self:
            return []
        held = self._held.setdefault(slot, {})
        first = max(0, work.start - (self._layout.window_tokens or 0) + 1) // self._layout.block_size
        self._free += [held.pop(index) for index in list(held) if index < first]
        missing = [index for index in range(self._layout.blocks_for(work.end)) if index >= first]
        added = [(index, self._free.pop()) for index in missing if index not in held]
        held.update(added)
        return added

    def end(self, slot: Slot) -> None:
        self._free += self._held.pop(slot, {}).values()


def _change(slot: Slot, index: int, block: int, *, in_windows: bool = False) -> BlockChange:
    return BlockChange(slot=slot, index=index, block=BlockId(block), in_windows=in_windows)


def _start(
    slot: Slot, turn: Turn, blocks: Sequence[int], window_blocks: Sequence[int] | None
) -> SequenceStart:
    return SequenceStart(
        slot=slot,
        request_id=RequestId(f"turn-{slot}"),
        tokens=token_ids(turn.prompt),
        num_prompt_tokens=len(turn.prompt),
        blocks=block_ids(blocks),
        sampling=turn.sampling,
        window_blocks=None if window_blocks is None else block_ids(window_blocks),
    )
