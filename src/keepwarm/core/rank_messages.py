"""What a front and a rank say to each other: msgpack, one message a step each way.

Every `Submit` is answered by exactly one `Ended`, unless the rank dies first; then the front
ends it. End of file means death.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from keepwarm.core.errors import ErrorOnWire
from keepwarm.core.grammar import Grammar
from keepwarm.core.ids import RequestId
from keepwarm.core.sampling import Sampling, TokenLogprobs


class Init(msgspec.Struct, frozen=True, kw_only=True, tag="init"):
    """The first message to a rank: what may not stand on a command line."""

    hash_key: bytes
    settings: bytes
    """The backend's settings as JSON: `core` does not know their type."""
    rank: int = 0
    """Which of the replica's ranks this is, from 0."""


class Submit(msgspec.Struct, frozen=True, kw_only=True, tag="submit"):
    """One turn. The front has checked that prompt and output fit the context."""

    request_id: RequestId
    tokens: bytes
    """int32 little-endian, end to end."""
    block_hashes: bytes
    """Names of the prompt's full blocks, end to end."""
    root: bytes
    """The first block's parent."""
    max_output_tokens: int
    stop_tokens: tuple[int, ...]
    sampling: Sampling
    grammar: Grammar | None = None
    """What the answer must look like, where the caller forces a form."""
    use_cache: bool = True
    """False: neither take from the prefix cache nor leave anything in it."""


class Abort(msgspec.Struct, frozen=True, kw_only=True, tag="abort"):
    """The client went away. Answered by `Ended(reason="aborted")` unless it ended already."""

    request_id: RequestId


class Cut(msgspec.Struct, frozen=True, kw_only=True, tag="cut"):
    """A stop string was found: finish after `num_output_tokens`. Answered by `Ended("stop")`."""

    request_id: RequestId
    num_output_tokens: int


class Shutdown(msgspec.Struct, frozen=True, kw_only=True, tag="shutdown"):
    """End every request as aborted, then exit."""


ToRank = Init | Submit | Abort | Cut | Shutdown


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The engine is loaded."""

    num_blocks: int
    block_size: int
    bytes_per_block: int
    max_num_seqs: int
    max_model_len: int
    vocab_size: int
    description: str
    """One line for the log: device, dtype, attention."""


class StartFailed(msgspec.Struct, frozen=True, kw_only=True, tag="start_failed"):
    """The engine could not be loaded; the process exits."""

    error: ErrorOnWire


class Admitted(msgspec.Struct, frozen=True, kw_only=True, tag="admitted"):
    """The turn holds its memory and will be read in the next steps. Sent once a request."""

    request_id: RequestId
    cached_tokens: int
    """Of the prompt, not read again, whatever tier they were in."""
    host_tokens: int = 0
    """Of those, copied up from host memory."""
    disk_tokens: int = 0
    """Of those in host memory, brought there from disk."""


class Tokens(msgspec.Struct, frozen=True, kw_only=True, tag="tokens"):
    """Sampled tokens, in order. The stop token itself is not among them."""

    request_id: RequestId
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()


EndReason = Literal["stop", "length", "aborted", "failed"]


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """The one terminal event."""

    request_id: RequestId
    reason: EndReason
    error: ErrorOnWire | None = None


class CacheEvent(msgspec.Struct, frozen=True, kw_only=True, tag="cache"):
    """What became of named blocks. All that are told, in order, give what a tier holds."""

    kind: Literal["stored", "evicted"]
    tier: Literal["l0", "l1", "disk"]
    names: bytes
    """End to end. Stored: in order, each the child of the one before. Evicted: in any order."""
    parent: bytes = b""
    """Of the first stored one; a root where it begins a prefix."""
    reason: str = ""
    """Stored: "computed", "promoted", "demoted", "loaded". Evicted: "room", "cleared", "dropped"."""


class RankStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters since start (num_*_total) and gauges now; blocks are L0 blocks."""

    steps_total: int
    prompt_tokens_total: int
    cached_tokens_total: int
    computed_tokens_total: int
    output_tokens_total: int
    preemptions_total: int
    evicted_blocks_total: int
    waiting: int
    running: int
    blocks_total: int
    blocks_held: int
    blocks_cached: int
    blocks_empty: int
    constrained_turns_total: int = 0
    """Turns with a grammar that were queued."""
    host_tokens_total: int = 0
    """Of the cached tokens, those copied up from host memory."""
    disk_tokens_total: int = 0
    promoted_blocks_total: int = 0
    demoted_blocks_total: int = 0
    promoted_bytes_total: int = 0
    demoted_bytes_total: int = 0
    promote_s_total: float = 0.0
    demote_s_total: float = 0.0
    skipped_promotions_total: int = 0
    """Turns for which reading again was predicted to be cheaper than copying."""
    replayed_tokens_total: int = 0
    """Tokens that were known and are computed again, since layers with a window kept none near by."""
    copies_in_flight: int = 0
    host_tier: str = ""
    """"on", or why it is off; "" where there is none."""


class Report(msgspec.Struct, frozen=True, kw_only=True, tag="report"):
    """Everything one step brought; an idle rank sends an empty one as its heartbeat."""

    events: tuple[Admitted | Tokens | Ended, ...]
    stats: RankStats
    cache: tuple[CacheEvent, ...] = ()


FromRank = Ready | StartFailed | Report
