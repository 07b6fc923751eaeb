"""The lines of `/events`: one JSON object each, told apart by `event` (docs/events.md).

A name is a block's, in hexadecimal: the keyed hash of a prefix, which says nothing of its words.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from keepwarm.cache.told_index import Run
from keepwarm.core.hashing import BlockNames
from keepwarm.core.rank_messages import CacheEvent

FORMAT = 1
"""Changes when a line means something else; new fields and new events do not change it."""

Tier = Literal["l0", "l1", "disk"]


class Begin(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="begin"):
    """The first line."""

    format: int = FORMAT
    model: str


class Rank(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="rank"):
    """A rank's state, when it changes. Whichever it is: its L0 holds nothing now."""

    rank: int
    state: Literal["serving", "lost"]
    num_blocks: int
    """Of its L0; 0 where it is lost."""
    block_size: int
    """Tokens a block; 0 where it is lost."""


class Host(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="host"):
    """The state of host memory, when it changes. Whichever it is: L1 and disk hold nothing now."""

    state: Literal["on", "off"]
    reason: str
    """Why it is off."""


class Stored(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="stored"):
    """Blocks that are there from now on, in order, each the child of the one before. `rank` is null where
    the tier belongs to all ranks."""

    tier: Tier
    rank: int | None
    parent: str
    """The name before the first of them; of a prefix's first block a root, or "", which no block has."""
    names: list[str]
    reason: str


class Evicted(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="evicted"):
    """Blocks that are there no more, in any order."""

    tier: Tier
    rank: int | None
    names: list[str]
    reason: str


class Live(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="live"):
    """All that was there has been told; from here on lines tell what changes."""


class End(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="end"):
    """The last line."""

    reason: str


Line = Begin | Rank | Host | Stored | Evicted | Live | End

_encoder = msgspec.json.Encoder()


def encode_line(line: Line) -> bytes:
    """With its line break."""
    return _encoder.encode(line) + b"\n"


def line_of(event: CacheEvent, rank: int | None) -> Line:
    """What happened, as a line."""
    names = [name.hex() for name in BlockNames(event.names)[:]]
    if event.kind == "evicted":
        return Evicted(tier=event.tier, rank=rank, names=names, reason=event.reason)
    return Stored(tier=event.tier, rank=rank, parent=event.parent.hex(), names=names, reason=event.reason)


def line_of_run(run: Run, tier: Tier, rank: int | None) -> Line:
    """What was there before the reader came."""
    parent, names = run
    return Stored(
        tier=tier, rank=rank, parent=parent.hex(), names=[name.hex() for name in names], reason="there"
    )
