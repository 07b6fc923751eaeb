"""What ranks and a front say to `keepwarm hostcache`: msgpack, length-prefixed, on a Unix socket.

Each `ToHost` but `PutRecords` is answered by exactly one message, except that `Observe` turns the
connection into a stream of `Told`, and `GetRecords` is answered by `Records` until the last one.
The answer to `Attach` carries the arena's descriptor (SCM_RIGHTS).
"""

from __future__ import annotations

import msgspec

from keepwarm.core.errors import ErrorOnWire
from keepwarm.core.host_tier import HostGeometry
from keepwarm.core.rank_messages import CacheEvent


class Attach(msgspec.Struct, frozen=True, kw_only=True, tag="attach"):
    """A rank's first message: what its blocks are. Answered by `Attached`, `Refused` or `Off`."""

    rank: int
    geometry: HostGeometry


class _AboutNames(msgspec.Struct, frozen=True, kw_only=True):
    after: bytes | None
    names: bytes
    """End to end."""


class Find(_AboutNames, frozen=True, kw_only=True, tag="find"):
    """`HostTier.find`, answered by `Lease` or `Nothing`."""


class Prefetch(_AboutNames, frozen=True, kw_only=True, tag="prefetch"):
    """`HostTier.prefetch`, answered by `Yes` or `Nothing`."""


class Reserve(_AboutNames, frozen=True, kw_only=True, tag="reserve"):
    """`HostTier.reserve`, answered by `Lease` or `Nothing`."""


class Written(msgspec.Struct, frozen=True, kw_only=True, tag="written"):
    """`HostTier.written`."""

    lease_id: int


class Release(msgspec.Struct, frozen=True, kw_only=True, tag="release"):
    """`HostTier.release`."""

    lease_id: int


class Drop(msgspec.Struct, frozen=True, kw_only=True, tag="drop"):
    """`HostTier.drop`."""

    names: bytes


class SwitchOff(msgspec.Struct, frozen=True, kw_only=True, tag="switch_off"):
    """`HostTier.switch_off`."""

    reason: str


class Bye(msgspec.Struct, frozen=True, kw_only=True, tag="bye"):
    """Nothing of the sender is in flight: all its leases end now. A connection that ends without it
    keeps them until the process at its other end is gone, as its copies may still go on."""


class Observe(msgspec.Struct, frozen=True, kw_only=True, tag="observe"):
    """From now on tell what becomes of blocks."""


class PutRecords(msgspec.Struct, frozen=True, kw_only=True, tag="put_records"):
    """Keep these for whoever asks after a restart. Not answered; the oldest make room."""

    records: tuple[tuple[bytes, bytes], ...]
    """Key and value, which mean nothing here."""


class GetRecords(msgspec.Struct, frozen=True, kw_only=True, tag="get_records"):
    """All records, oldest first."""


class Check(msgspec.Struct, frozen=True, kw_only=True, tag="check"):
    """Whether the index is sound. Answered by `Done` or `Refused`. Looks at every slot."""


ToHost = (
    Attach
    | Find
    | Prefetch
    | Reserve
    | Written
    | Release
    | Drop
    | SwitchOff
    | Bye
    | Observe
    | PutRecords
    | GetRecords
    | Check
)


class Attached(msgspec.Struct, frozen=True, kw_only=True, tag="attached"):
    """The arena, whose descriptor comes with it."""

    num_slots: int
    slot_bytes: int


class Lease(msgspec.Struct, frozen=True, kw_only=True, tag="lease"):
    """`HostLease`."""

    lease_id: int
    num_present: int
    slots: bytes
    """int64 little-endian, end to end."""
    num_from_disk: int


class Nothing(msgspec.Struct, frozen=True, kw_only=True, tag="nothing"):
    """None, or False."""


class Yes(msgspec.Struct, frozen=True, kw_only=True, tag="yes"):
    """True."""


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    """It was done."""


class Off(msgspec.Struct, frozen=True, kw_only=True, tag="off"):
    """The tier is switched off; nothing was done."""

    reason: str


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """Nothing was done; the connection ends."""

    error: ErrorOnWire


class DiskStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The third tier: gauges now, and counters (num_*_total) since it was opened. Blocks are records."""

    budget_bytes: int
    off_reason: str | None
    """Why nothing is written any more, or why the tier is not there at all."""
    num_blocks: int = 0
    num_bytes: int = 0
    num_read_total: int = 0
    num_written_total: int = 0
    num_evicted_total: int = 0
    num_damaged_total: int = 0


class HostStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Gauges now, and counters (num_*_total) since start. Blocks are slots of the arena."""

    budget_bytes: int
    slot_bytes: int
    """0: no rank has attached yet."""
    ranks: tuple[int, ...]
    """Those that are attached."""
    off_reason: str | None
    num_slots: int
    num_writing: int
    num_leased: int
    num_cached: int
    num_empty: int
    num_found_total: int
    num_not_found_total: int
    num_stored_total: int
    num_evicted_total: int
    num_dropped_total: int
    num_refused_total: int
    num_reclaimed_total: int
    record_bytes: int
    disk: DiskStatus | None = None
    """None: there is no third tier."""


class Told(msgspec.Struct, frozen=True, kw_only=True, tag="told"):
    """What became of blocks since the last one; sent when something did, and each second."""

    is_whole: bool
    """The events give all that is there, as if it had been stored now: forget what was told before."""
    events: tuple[CacheEvent, ...]
    status: HostStatus


class Records(msgspec.Struct, frozen=True, kw_only=True, tag="records"):
    """Some records, in order."""

    records: tuple[tuple[bytes, bytes], ...]
    is_last: bool


FromHost = Attached | Lease | Nothing | Yes | Done | Off | Refused | Told | Records
