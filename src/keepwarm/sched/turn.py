"""One turn inside a rank, from submit to its terminal event.

    tokens:  0 ───── num_computed ───── num_planned ───── num_known ─ (+ samples in flight)
                committed      in flight         not yet planned

There is no prefill or decode phase: a turn has work while `num_planned < num_known`, counting
tokens that an uncollected step samples as known.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from keepwarm.cache.prefix import Holding
from keepwarm.core.grammar import Grammar
from keepwarm.core.hashing import BlockHasher, BlockNames
from keepwarm.core.host_tier import HostLease
from keepwarm.core.ids import BlockHash, RequestId, Slot, TokenIds
from keepwarm.core.rank_messages import Submit
from keepwarm.core.sampling import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """Blocks of a turn that are being copied up."""

    lease: HostLease
    first_block: int
    """Blocks [first_block, end_block) of its holding."""

    @property
    def num_blocks(self) -> int:
        return len(self.lease.slots)

    @property
    def end_block(self) -> int:
        return self.first_block + self.num_blocks


@dataclass(slots=True, kw_only=True, eq=False)
class Turn:
    """Mutable state of one request; owned by the `Scheduler`."""

    request_id: RequestId
    prompt: TokenIds
    root: BlockHash
    names: BlockNames
    """Names of the full blocks of prompt and output so far; empty when the cache is bypassed."""
    sampling: Sampling
    stop_tokens: frozenset[int]
    max_output_tokens: int
    uses_cache: bool
    grammar: Grammar | None = None

    output: list[int] = field(default_factory=list)
    num_computed: int = 0
    num_planned: int = 0
    num_sampling: int = 0
    """Samples in flight."""
    num_in_flight: int = 0
    """Uncollected steps that name this turn; its blocks stay held until it is 0."""
    holding: Holding | None = None
    slot: Slot | None = None
    promotion: Promotion | None = None
    """Set: nothing of it is computed until the copy has ended, and its blocks stay held."""
    has_skipped_promotion: bool = False
    has_prefetched: bool = False
    """No slower tier is bringing anything up for it."""
    prefetch_began_s: float | None = None
    prefetch_asked_s: float | None = None
    was_admitted: bool = False
    has_ended: bool = False

    @classmethod
    def from_submit(cls, message: Submit, *, uses_cache: bool) -> Turn:
        return cls(
            request_id=message.request_id,
            prompt=np.frombuffer(message.tokens, dtype=np.int32),
            root=BlockHash(message.root),
            names=BlockNames(message.block_hashes if uses_cache else b""),
            sampling=message.sampling,
            stop_tokens=frozenset(message.stop_tokens),
            max_output_tokens=message.max_output_tokens,
            uses_cache=uses_cache,
            grammar=message.grammar,
        )

    @property
    def num_prompt(self) -> int:
        return len(self.prompt)

    @property
    def num_known(self) -> int:
        """Tokens whose ids are, or will be, known once everything in flight is collected."""
        return len(self.prompt) + len(self.output) + self.num_sampling

    @property
    def num_cacheable(self) -> int:
        """Known tokens that a cache may give back: the last one must be computed, to sample from it."""
        return self.num_known - 1

    @property
    def num_unplanned(self) -> int:
        """Tokens the next steps can compute; 0 once the last sample is planned, or while a copy is on."""
        if self.promotion is not None or len(self.output) + self.num_sampling >= self.max_output_tokens:
            return 0
        return self.num_known - self.num_planned

    @property
    def is_in_flight(self) -> bool:
        """Something that was submitted and not collected names its blocks."""
        return self.num_in_flight > 0 or self.promotion is not None

    def output_reserve(self, most: int) -> int:
        """Tokens of output to hold room for: what may still come, but no more than `most`."""
        left = self.max_output_tokens - len(self.output) - self.num_sampling
        return max(0, min(left, most))

    def all_tokens(self) -> TokenIds:
        """Prompt and output, as the executor must know them when the turn (re)starts."""
        if not self.output:
            return self.prompt  # read-only: it is the message's own memory
        return np.concatenate([self.prompt, np.array(self.output, dtype=np.int32)])

    def name_blocks(self, num_blocks: int, hasher: BlockHasher) -> None:
        """Extend `names` to `num_blocks`, whose tokens are all known. O(new tokens)."""
        if num_blocks <= len(self.names):
            return
        parent = self.names[-1] if self.names else self.root
        start, end = len(self.names) * hasher.block_size, num_blocks * hasher.block_size
        self.names.extend(hasher.extend(parent, self._tokens_between(start, end)))

    def _tokens_between(self, start: int, end: int) -> TokenIds:
        offset = len(self.prompt)
        output = np.array(self.output[max(0, start - offset) : max(0, end - offset)], dtype=np.int32)
        return np.concatenate([self.prompt[start:end], output])

    def restart(self) -> None:
        """Back to waiting after a preemption: ids stay, progress does not."""
        self.num_computed = self.num_planned = 0
        self.holding = None
        self.slot = None
        self.has_prefetched = False
        self.prefetch_began_s = self.prefetch_asked_s = None
