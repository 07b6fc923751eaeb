"""An executor without a model: it makes up tokens or plays answers, and proves that the plans are right.

What it stores as "KV" of a position is a running digest of all tokens up to there, so it is as
prefix-dependent as the real thing: a block that was swapped, freed too early, shared before it
was computed, read before it was copied up or never computed shows at the next step that reads it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from keepwarm.core.errors import InvariantBroken
from keepwarm.core.grammar import Grammar
from keepwarm.core.host_tier import HostArena
from keepwarm.core.ids import BlockId, BlockIds, RequestId, Slot, TokenIds, token_ids
from keepwarm.core.sampling import TokenLogprobs
from keepwarm.core.step import (
    BlockChange,
    ExecutorLimits,
    SequenceOutput,
    SequenceStart,
    SequenceWork,
    StepId,
    StepPlan,
    StepResult,
)
from keepwarm.engine.copies_in_flight import CopiesInFlight
from keepwarm.engine.digests import Digester, advance_one
from keepwarm.engine.scripted_copies import NOT_COMPUTED, ScriptedCopies
from keepwarm.engine.scripted_windows import ScriptedWindows

NextToken = Callable[[int, int, ExecutorLimits], int]
"""(digest of all tokens so far, their number, limits) → the next token."""

AnswerTo = Callable[[TokenIds], Sequence[int]]
"""A prompt → all tokens of its answer, the one that ends it included; asked once a start."""


def made_up_token(digest: int, num_tokens: int, limits: ExecutorLimits) -> int:
    """Depends on every token before it, like a real model's greedy choice."""
    return (digest >> 7) % limits.vocab_size


class _Sequence:
    """One slot's tokens and block table; the prompt is never copied."""

    def __init__(self, start: SequenceStart, limits: ExecutorLimits, answer: Sequence[int] | None) -> None:
        self.slot = start.slot
        self.request_id = start.request_id
        self.sampling = start.sampling
        self.num_prompt_tokens = start.num_prompt_tokens
        self.answer = answer
        self._given = start.tokens
        self._sampled: list[int] = []
        self._num_blocks = len(start.blocks)
        self._table: BlockIds = np.empty(limits.layout.blocks_for(limits.max_model_len) + 1, dtype=np.int64)
        self._table[: self._num_blocks] = start.blocks

    @property
    def num_known(self) -> int:
        return len(self._given) + len(self._sampled)

    @property
    def blocks(self) -> BlockIds:
        """The block table, (num_blocks,); a view."""
        return self._table[: self._num_blocks]

    def tokens(self, start: int, end: int) -> TokenIds:
        num_given = len(self._given)
        sampled = self._sampled[max(0, start - num_given) : max(0, end - num_given)]
        given = self._given[start:end]
        return np.concatenate([given, token_ids(sampled)]) if sampled else given

    def token(self, position: int) -> int:
        num_given = len(self._given)
        return int(self._given[position]) if position < num_given else self._sampled[position - num_given]

    def append_token(self, token: int) -> None:
        self._sampled.append(token)

    def set_block(self, index: int, block: BlockId) -> None:
        """Append the next block or replace one."""
        self._table[index] = block
        self._num_blocks = max(self._num_blocks, index + 1)


@dataclass(slots=True, kw_only=True)
class ScriptedExecutor:
    """`verify` re-reads each sequence's whole prefix at every step: O(context), for tests."""

    limits: ExecutorLimits
    next_token: NextToken = made_up_token
    answer_to: AnswerTo | None = None
    """Where given, its answers are played instead of made-up tokens."""
    step_s: float = 0.0
    """A step with work ends at the next multiple of this on the monotonic clock, by sleeping, so that
    whoever reads the tokens can tell how long ago they were made. 0: as fast as it can."""
    verify: bool = True
    fail_at_step: int | None = None
    """Raise in this step, as a device would."""
    copy_steps: int = 0
    """A copy ends so many steps after that of its plan, or earlier where a plan awaits it."""
    token_s: float = 0.0
    """What results say that a token's KV took to compute, beside `step_s`; nothing waits for it."""
    block_copy_s: float = 0.0
    """What results say that copying a block took; nothing waits for it."""
    _digests: npt.NDArray[np.int64] = field(init=False)
    """What each place of each block holds, (num_blocks * block_size,)."""
    _digester: Digester = field(init=False, default_factory=Digester)
    grammars: dict[RequestId, Grammar] = field(init=False, default_factory=dict)
    """What each running sequence was told to keep to. Nothing here enforces it: whether the made-up
    tokens satisfy it is their maker's business."""
    _sequences: dict[Slot, _Sequence] = field(init=False, default_factory=dict)
    _results: deque[tuple[StepPlan, StepResult]] = field(init=False, default_factory=deque)
    _last_step: int = field(init=False, default=0)
    _copies: ScriptedCopies = field(init=False)
    _in_flight: CopiesInFlight = field(init=False)
    _windows: ScriptedWindows = field(init=False)

    def __post_init__(self) -> None:
        layout, num_blocks = self.limits.layout, self.limits.num_blocks
        self._digests = np.full(num_blocks * layout.block_size, NOT_COMPUTED, dtype=np.int64)
        self._copies = ScriptedCopies(self._digests.reshape(num_blocks, layout.block_size), layout)
        self._copies.block_s = self.block_copy_s
        self._in_flight = CopiesInFlight(num_blocks)
        self._windows = ScriptedWindows(self.limits)

    @property
    def corrupt_next_promotion(self) -> bool:
        """Set: a bit of what the next promotion copies is flipped, in host memory too."""
        return self._copies.corrupt_next

    @corrupt_next_promotion.setter
    def corrupt_next_promotion(self, wanted: bool) -> None:
        self._copies.corrupt_next = wanted

    def attach_arena(self, arena: HostArena) -> None:
        """A slot is as large as the layout says that a block is; what is kept in it needs 8 bytes a token."""
        num_slots = self._copies.attach(arena)
        self._in_flight.use_slots(num_slots)

    def prepare(self, grammar: Grammar) -> bool:
        """Any grammar will do."""
        return True

    def submit(self, plan: StepPlan) -> StepId:
        """Computes at once; the result waits to be collected."""
        if plan.step_id != self._last_step + 1:
            raise InvariantBroken(f"step {plan.step_id} after step {self._last_step}")
        if self.fail_at_step == plan.step_id:
            raise RuntimeError(f"scripted failure at step {plan.step_id}")
        self._last_step = plan.step_id
        started_at = time.monotonic()
        for slot in plan.ended:
            self.grammars.pop(self._sequences.pop(slot).request_id, None)
            self._windows.end(slot)
        self._in_flight.begin(plan)
        self._copies.begin(plan, self.copy_steps)
        for start in plan.starts:
            self._start(start)
        for change in plan.changes:
            self._change(change)
        if self._in_flight:
            for work in plan.works:
                self._check_copied(work)
        outputs = [output for work in plan.works if (output := self._work(work)) is not None]
        self._copies.advance(plan.step_id)
        if plan.works and self.step_s:
            ends_at = (started_at // self.step_s + 1) * self.step_s
            time.sleep(max(0.0, ends_at - time.monotonic()))
        compute_s = (self.step_s if plan.works else 0.0) + plan.num_tokens * self.token_s
        result = StepResult(step_id=plan.step_id, outputs=tuple(outputs), compute_s=compute_s)
        self._results.append((plan, result))
        return plan.step_id

    def collect(self) -> StepResult:
        """The oldest submitted plan's result."""
        plan, result = self._results.popleft()
        if not self._in_flight:
            return result
        copies = self._copies.take(plan.step_id, awaited=plan.awaits_copy and not plan.works)
        for ended in copies:
            self._in_flight.end(ended.copy_id)
        return replace(result, copies=copies)

    def close(self) -> None:
        """Forget everything."""
        self._sequences.clear()
        self._copies.close()

    def _start(self, start: SequenceStart) -> None:
        if start.slot in self._sequences:
            raise InvariantBroken(f"slot {start.slot} is taken")
        prompt = start.tokens[: start.num_prompt_tokens]
        answer = None if self.answer_to is None else self.answer_to(prompt)
        self._sequences[start.slot] = _Sequence(start, self.limits, answer)
        self._windows.start(start)
        if start.grammar is not None:
            self.grammars[start.request_id] = start.grammar

    def _change(self, change: BlockChange) -> None:
        if change.in_windows:
            self._windows.change(change)
            return
        self._sequences[change.slot].set_block(change.index, change.block)

    def _check_copied(self, work: SequenceWork) -> None:
        sequence, size = self._sequences[work.slot], self.limits.layout.block_size
        blocks = sequence.blocks[: self.limits.layout.blocks_for(work.end)]
        name = f"{sequence.request_id}: works on [{work.start}, {work.end})"
        self._in_flight.check_work(name, read=blocks, written=blocks[work.start // size :])

    def _work(self, work: SequenceWork) -> SequenceOutput | None:
        sequence = self._sequences[work.slot]
        if not work.start < work.end <= sequence.num_known:
            raise InvariantBroken(f"{sequence.request_id}: tokens [{work.start}, {work.end}) are not known")
        if work.end > len(sequence.blocks) * self.limits.layout.block_size:
            raise InvariantBroken(f"{sequence.request_id}: no block for token {work.end - 1}")
        if work.sample and work.end != sequence.num_known:
            raise InvariantBroken(f"{sequence.request_id}: samples at {work.end}, before the last token")
        digest = self._compute(sequence, work.start, work.end)
        if not work.sample:
            return None
        token = self._next_token(sequence, digest)
        sequence.append_token(token)
        logprobs = () if sequence.sampling.num_logprobs is None else (self._logprobs(sequence, token),)
        return SequenceOutput(slot=work.slot, tokens=(token,), logprobs=logprobs)

    def _next_token(self, sequence: _Sequence, digest: int) -> int:
        if sequence.answer is None:
            return self.next_token(digest, sequence.num_known, self.limits)
        num_said = sequence.num_known - sequence.num_prompt_tokens
        return sequence.answer[min(num_said, len(sequence.answer) - 1)]

    def _compute(self, sequence: _Sequence, start: int, end: int) -> int:
        """Digests of the tokens [start, end) into their blocks; returns the last."""
        before = self._read_prefix(sequence, start)
        if end - start == 1:  # most steps are decodes, and arrays of one cost more than the sum
            digest = advance_one(before, sequence.token(start))
            self._digests[self._place(sequence, start)] = digest
            if self._windows:
                self._windows.store(sequence.request_id, sequence.slot, start, np.array([digest]))
            return digest
        digests = self._digester.advance(before, sequence.tokens(start, end))
        self._digests[self._places(sequence, start, end)] = digests
        self._windows.store(sequence.request_id, sequence.slot, start, digests)
        return int(digests[-1])

    def _read_prefix(self, sequence: _Sequence, end: int) -> int:
        """The digest before position `end`, read from the blocks as attention reads KV."""
        if end == 0:
            return 0
        if self.verify:
            self._expect_prefix(sequence, end)
            self._windows.expect(
                sequence.request_id,
                sequence.slot,
                end,
                lambda: self._digester.advance(0, sequence.tokens(0, end)),
            )
        stored = int(self._digests[self._place(sequence, end - 1)])
        if stored == NOT_COMPUTED:
            raise InvariantBroken(f"{sequence.request_id}: token {end - 1} was never computed")
        return stored

    def _expect_prefix(self, sequence: _Sequence, end: int) -> None:
        stored = self._digests[self._places(sequence, 0, end)]
        expected = self._digester.advance(0, sequence.tokens(0, end))
        for position in np.flatnonzero(stored != expected):
            block = sequence.blocks[position // self.limits.layout.block_size]
            raise InvariantBroken(
                f"{sequence.request_id}: block {block} does not hold token {position} of this prefix"
            )

    def _place(self, sequence: _Sequence, position: int) -> int:
        index, offset = divmod(position, self.limits.layout.block_size)
        return int(sequence.blocks[index]) * self.limits.layout.block_size + offset

    def _places(self, sequence: _Sequence, start: int, end: int) -> npt.NDArray[np.int64]:
        """Where the tokens [start, end) lie in `_digests`."""
        size = self.limits.layout.block_size
        first = start // size
        blocks = sequence.blocks[first : -(-end // size)]
        places = blocks[:, np.newaxis] * size + np.arange(size)  # (num_blocks, block_size)
        return places.reshape(-1)[start - first * size : end - first * size]

    def _logprobs(self, sequence: _Sequence, token: int) -> TokenLogprobs:
        top = tuple((token, -0.5) for _ in range(min(1, sequence.sampling.num_logprobs or 0)))
        return TokenLogprobs(logprob=-0.5, top=top)
