"""The seam between deciding and computing: plans go down, results come up.

One sequence, in tokens:

    0          start        end                     known
    ├─ computed ─┼─ this step ─┼─ later steps ────────┤
                               └ sample: end == known, and the new token becomes number `end`

The executor keeps, a slot, the sequence's tokens and block table; a plan carries only what
changed, so a step costs O(changes), not O(context). A plan may name tokens that an earlier,
uncollected plan samples: the executor appends each sampled token itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NewType, Protocol

from keepwarm.core.grammar import Grammar
from keepwarm.core.host_tier import HostArena
from keepwarm.core.ids import BlockId, BlockIds, HostSlots, RequestId, Slot, TokenIds
from keepwarm.core.layout import CacheLayout
from keepwarm.core.sampling import Sampling, TokenLogprobs

StepId = NewType("StepId", int)
"""Plans count up from 1; results come back in the same order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceStart:
    """A sequence takes a slot, with all its known tokens and the blocks held for it so far."""

    slot: Slot
    request_id: RequestId
    tokens: TokenIds
    num_prompt_tokens: int
    """Tokens from here on were sampled earlier (the sequence was preempted)."""
    blocks: BlockIds
    sampling: Sampling
    window_first: int = 0
    window_blocks: BlockIds | None = None
    """Where layers with a window have blocks of their own: their table from index `window_first` on.
    What stands before it is not read."""
    grammar: Grammar | None = None
    """Every token sampled for this sequence keeps to it, those from `num_prompt_tokens` on included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockChange:
    """`table[index] = block`: the next block appended, or one replaced by its equal."""

    slot: Slot
    index: int
    block: BlockId
    in_windows: bool = False
    """The table of the layers with a window is meant, and a block of theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceWork:
    """Compute the KV of tokens [start, end) of a slot; with `sample`, draw token number `end`."""

    slot: Slot
    start: int
    end: int
    sample: bool


CopyId = NewType("CopyId", int)
"""Copies count up from 1, over all plans of one executor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCopies:
    """Whole blocks between device and host memory: `blocks[i]` and `slots[i]` hold the same one.

    "demote" copies down: the blocks stay as they are until its result is collected, unless it comes
    `before_works`; then this plan's works and its promotions may overwrite them, and the executor reads them
    first. "promote" copies up: no work names the blocks before its result is collected.
    """

    copy_id: CopyId
    direction: Literal["promote", "demote"]
    blocks: BlockIds
    slots: HostSlots
    before_works: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyResult:
    """One `BlockCopies` has ended; its blocks and slots may be used."""

    copy_id: CopyId
    is_sound: bool
    """False: a checksum did not match, and what was copied up must not be read."""
    num_bytes: int
    copy_s: float
    """Seconds from the copy's own start to its end, waiting for others not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One step, applied in the order ended, copies, starts, changes, works. An empty plan is legal.

    Copies run beside the works of this and later plans. Where there are no works and `awaits_copy`,
    `collect` waits until some copy has ended.
    """

    step_id: StepId
    ended: Sequence[Slot] = ()
    starts: Sequence[SequenceStart] = ()
    changes: Sequence[BlockChange] = ()
    works: Sequence[SequenceWork] = ()
    copies: Sequence[BlockCopies] = ()
    awaits_copy: bool = False

    @property
    def num_tokens(self) -> int:
        return sum(work.end - work.start for work in self.works)


GrammarEnd = Literal["complete", "stuck"]
"""No token follows: the grammar is complete and the model has no token to say so, or it allows none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceOutput:
    """The tokens one slot gained in a step: exactly the sampled ones, 0..k of them."""

    slot: Slot
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One entry a token where the request asked for them, else empty."""
    grammar_end: GrammarEnd | None = None
    """Set: the sequence's grammar lets it go no further, and `tokens` is empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What came of one plan. `outputs` has an entry for each work with `sample`."""

    step_id: StepId
    outputs: Sequence[SequenceOutput] = field(default_factory=tuple)
    copies: Sequence[CopyResult] = ()
    """Those that ended since the last result, of this plan or earlier ones."""
    compute_s: float = 0.0
    """Seconds that the works took on the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorLimits:
    """What an executor can hold; fixed once it is built."""

    layout: CacheLayout
    num_blocks: int
    """Of the layers that keep every token: of all, unless there are `num_window_blocks`."""
    max_num_seqs: int
    max_model_len: int
    vocab_size: int
    num_window_blocks: int = 0
    """Blocks of the layers with a window, numbered apart; 0: they are part of the other blocks."""


class Executor(Protocol):
    """Executes plans in order on one device, or pretends to.

    Two tickets may be in flight. Blocks that a plan names must stay as they are until its
    result is collected.
    """

    @property
    def limits(self) -> ExecutorLimits:
        """Fixed after construction."""

    def attach_arena(self, arena: HostArena) -> None:
        """Blocks are copied to and from this memory from now on; without it no plan has copies.

        Registers it with the device where that makes copies faster. Raises `BadSetting` with the
        limit that stands in the way.
        """

    def prepare(self, grammar: Grammar) -> bool:
        """Whether a sequence with this grammar may start; if not, it soon may: ask again.

        Never waits. Raises `BadRequest` where the grammar cannot be enforced.
        """

    def submit(self, plan: StepPlan) -> StepId:
        """Take a plan; may return before it is computed. Raises `InvariantBroken` on a wrong plan."""

    def collect(self) -> StepResult:
        """Wait for the oldest submitted plan. Every submitted plan is collected exactly once."""

    def close(self) -> None:
        """Release the device. Nothing may be in flight."""
