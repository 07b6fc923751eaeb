"""An executor without a model: it makes up tokens or plays answers, and proves that the plans are right.

What it stores as "KV" of a position is a running digest of all tokens up to there, so it is as
prefix-dependent as the real thing: a block that was swapped, freed too early, shared before it
was computed or never computed shows at the next step that reads it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from keepwarm.core.errors import InvariantBroken
from keepwarm.core.ids import BlockId, RequestId, Slot, TokenIds
from keepwarm.core.sampling import Sampling, TokenLogprobs
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

NextToken = Callable[[int, int, ExecutorLimits], int]
"""(digest of all tokens so far, their number, limits) → the next token."""

AnswerTo = Callable[[TokenIds], Sequence[int]]
"""A prompt → all tokens of its answer, the one that ends it included; asked once a start."""

_MASK = (1 << 62) - 1
_NOT_COMPUTED = -1


def made_up_token(digest: int, num_tokens: int, limits: ExecutorLimits) -> int:
    """Depends on every token before it, like a real model's greedy choice."""
    return (digest >> 7) % limits.vocab_size


def _advance(digest: int, token: int) -> int:
    return (digest * 6364136223846793005 + token + 1442695040888963407) & _MASK


@dataclass(slots=True, kw_only=True)
class _Sequence:
    request_id: RequestId
    tokens: list[int]
    num_prompt_tokens: int
    blocks: list[BlockId]
    sampling: Sampling
    answer: Sequence[int] | None


@dataclass(slots=True, kw_only=True)
class ScriptedExecutor:
    """`verify` re-reads each sequence's whole prefix at every step: O(context), for tests."""

    limits: ExecutorLimits
    next_token: NextToken = made_up_token
    answer_to: AnswerTo | None = None
    """Where given, its answers are played instead of made-up tokens."""
    step_s: float = 0.0
    """How long a step with work takes, by sleeping."""
    verify: bool = True
    fail_at_step: int | None = None
    """Raise in this step, as a device would."""
    _digests: np.ndarray[tuple[int, int], np.dtype[np.int64]] = field(init=False)
    _sequences: dict[Slot, _Sequence] = field(init=False, default_factory=dict)
    _results: deque[StepResult] = field(init=False, default_factory=deque)
    _last_step: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        shape = (self.limits.num_blocks, self.limits.layout.block_size)
        self._digests = np.full(shape, _NOT_COMPUTED, dtype=np.int64)

    def submit(self, plan: StepPlan) -> StepId:
        """Computes at once; the result waits to be collected."""
        if plan.step_id != self._last_step + 1:
            raise InvariantBroken(f"step {plan.step_id} after step {self._last_step}")
        if self.fail_at_step == plan.step_id:
            raise RuntimeError(f"scripted failure at step {plan.step_id}")
        self._last_step = plan.step_id
        for slot in plan.ended:
            del self._sequences[slot]
        for start in plan.starts:
            self._start(start)
        for change in plan.changes:
            self._change(change)
        outputs = [output for work in plan.works if (output := self._work(work)) is not None]
        if plan.works and self.step_s:
            time.sleep(self.step_s)
        self._results.append(StepResult(step_id=plan.step_id, outputs=tuple(outputs)))
        return plan.step_id

    def collect(self) -> StepResult:
        """The oldest submitted plan's result."""
        return self._results.popleft()

    def close(self) -> None:
        """Forget everything."""
        self._sequences.clear()

    def _start(self, start: SequenceStart) -> None:
        if start.slot in self._sequences:
            raise InvariantBroken(f"slot {start.slot} is taken")
        prompt = start.tokens[: start.num_prompt_tokens]
        self._sequences[start.slot] = _Sequence(
            request_id=start.request_id,
            tokens=start.tokens.tolist(),
            num_prompt_tokens=start.num_prompt_tokens,
            blocks=list(start.blocks),
            sampling=start.sampling,
            answer=None if self.answer_to is None else self.answer_to(prompt),
        )

    def _change(self, change: BlockChange) -> None:
        blocks = self._sequences[change.slot].blocks
        if change.index == len(blocks):
            blocks.append(change.block)
        else:
            blocks[change.index] = change.block

    def _work(self, work: SequenceWork) -> SequenceOutput | None:
        sequence = self._sequences[work.slot]
        if not work.start < work.end <= len(sequence.tokens):
            raise InvariantBroken(f"{sequence.request_id}: tokens [{work.start}, {work.end}) are not known")
        if work.sample and work.end != len(sequence.tokens):
            raise InvariantBroken(f"{sequence.request_id}: samples at {work.end}, before the last token")
        digest = self._read_prefix(sequence, work.start)
        for position in range(work.start, work.end):
            digest = _advance(digest, sequence.tokens[position])
            self._digests[self._place(sequence, position)] = digest
        if not work.sample:
            return None
        token = self._next_token(sequence, digest)
        sequence.tokens.append(token)
        logprobs = () if sequence.sampling.num_logprobs is None else (self._logprobs(sequence, token),)
        return SequenceOutput(slot=work.slot, tokens=(token,), logprobs=logprobs)

    def _next_token(self, sequence: _Sequence, digest: int) -> int:
        if sequence.answer is None:
            return self.next_token(digest, len(sequence.tokens), self.limits)
        num_said = len(sequence.tokens) - sequence.num_prompt_tokens
        return sequence.answer[min(num_said, len(sequence.answer) - 1)]

    def _read_prefix(self, sequence: _Sequence, end: int) -> int:
        """The digest before position `end`, read from the blocks as attention reads KV."""
        if end == 0:
            return 0
        if self.verify:
            digest = 0
            for position in range(end):
                digest = _advance(digest, sequence.tokens[position])
                self._expect(sequence, position, digest)
        stored = int(self._digests[self._place(sequence, end - 1)])
        if stored == _NOT_COMPUTED:
            raise InvariantBroken(f"{sequence.request_id}: token {end - 1} was never computed")
        return stored

    def _expect(self, sequence: _Sequence, position: int, digest: int) -> None:
        stored = int(self._digests[self._place(sequence, position)])
        if stored != digest:
            block = sequence.blocks[position // self.limits.layout.block_size]
            raise InvariantBroken(
                f"{sequence.request_id}: block {block} does not hold token {position} of this prefix"
            )

    def _place(self, sequence: _Sequence, position: int) -> tuple[int, int]:
        index, offset = divmod(position, self.limits.layout.block_size)
        return sequence.blocks[index], offset

    def _logprobs(self, sequence: _Sequence, token: int) -> TokenLogprobs:
        top = tuple((token, -0.5) for _ in range(min(1, sequence.sampling.num_logprobs or 0)))
        return TokenLogprobs(logprob=-0.5, top=top)
