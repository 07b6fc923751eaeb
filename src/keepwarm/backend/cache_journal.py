"""What every tier of a replica holds, as its owners tell it, and what became of its blocks.

Feeds the readers of `/events` and the metrics. Decides nothing; nobody waits for it.

    ranks ──cache_changed──▶ ┐              ┌──▶ index of each tier ──snapshot──▶ ┐
    host  ──host_changed───▶ ┤ CacheJournal ├──▶ counts by reason                 ├ JournalReader
                             └              └──▶ lines ──────────────increments──▶ ┘
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from keepwarm.backend.cache_lines import (
    Begin,
    Host,
    Line,
    Live,
    Rank,
    Tier,
    encode_line,
    line_of,
    line_of_run,
)
from keepwarm.backend.journal_reader import JournalReader
from keepwarm.cache.told_index import ToldIndex
from keepwarm.core.errors import Overloaded
from keepwarm.core.hashing import HASH_BYTES
from keepwarm.core.rank_messages import CacheEvent, Ready

_MAX_READERS = 8
_MAX_UNREAD_BYTES = 16 << 20
_NAMES_A_LINE = 1_000
_RETRY_S = 10.0

Change = tuple[int | None, Tier, Literal["stored", "evicted"], str]
"""(rank, tier, what, why); no rank where the tier belongs to all of them."""


class CacheJournal:
    """A `RankWatcher` and a `HostWatcher`. All calls come from one event loop."""

    def __init__(self, *, model: str, max_unread_bytes: int = _MAX_UNREAD_BYTES) -> None:
        """`max_unread_bytes`: of lines that one reader has not taken, before it is dropped."""
        self._model = model
        self._max_unread_bytes = max_unread_bytes
        self._ranks: dict[int, Rank] = {}
        self._host: Host | None = None
        self._indexes: dict[tuple[int | None, Tier], ToldIndex] = {}
        self._changes: Counter[Change] = Counter()
        self._readers: set[JournalReader] = set()

    @property
    def changes(self) -> Mapping[Change, int]:
        """Blocks, since the front's start; a rank's restart does not set them back."""
        return self._changes

    def read(self) -> JournalReader:
        """What is there now, then what changes. Raises `Overloaded` where there are readers enough."""
        if len(self._readers) >= _MAX_READERS:
            raise Overloaded(
                message=f"{_MAX_READERS} readers of events are connected, which is the limit",
                retry_after_s=_RETRY_S,
            )
        reader = JournalReader(
            self._snapshot(), max_unread_bytes=self._max_unread_bytes, on_closed=self._readers.discard
        )
        self._readers.add(reader)
        return reader

    # RankWatcher

    def rank_serves(self, rank: int, ready: Ready) -> None:
        self._empty(rank, "l0", "restarted")
        serving = Rank(rank=rank, state="serving", num_blocks=ready.num_blocks, block_size=ready.block_size)
        self._ranks[rank] = serving
        self._tell([serving])

    def cache_changed(self, rank: int, events: Sequence[CacheEvent]) -> None:
        """Of L0 alone: of what ranks share its keeper tells."""
        self._take(rank, [event for event in events if event.tier == "l0"])

    def rank_lost(self, rank: int) -> None:
        self._empty(rank, "l0", "lost")
        self._ranks[rank] = lost = Rank(rank=rank, state="lost", num_blocks=0, block_size=0)
        self._tell([lost])

    # HostWatcher

    def host_on(self, contents: Iterable[CacheEvent]) -> None:
        self._host_is(Host(state="on", reason=""))
        self._learn(None, tuple(contents))

    def host_changed(self, events: Sequence[CacheEvent]) -> None:
        self._take(None, events)

    def host_off(self, reason: str) -> None:
        self._host_is(Host(state="off", reason=reason))

    def _host_is(self, host: Host) -> None:
        for tier in ("l1", "disk"):
            self._empty(None, tier, "lost")
        self._host = host
        self._tell([host])

    def _take(self, rank: int | None, events: Sequence[CacheEvent]) -> None:
        for event in events:
            self._changes[rank, event.tier, event.kind, event.reason] += len(event.names) // HASH_BYTES
        self._learn(rank, events)

    def _learn(self, rank: int | None, events: Sequence[CacheEvent]) -> None:
        for event in events:
            self._indexes.setdefault((rank, event.tier), ToldIndex()).take(event)
        if self._readers:
            self._tell([line_of(event, rank) for event in events])

    def _empty(self, rank: int | None, tier: Tier, reason: str) -> None:
        index = self._indexes.pop((rank, tier), None)
        if index:
            self._changes[rank, tier, "evicted", reason] += len(index)

    def _tell(self, lines: Sequence[Line]) -> None:
        if not lines or not self._readers:
            return
        piece = b"".join(map(encode_line, lines))
        for reader in tuple(self._readers):
            reader.tell(piece)

    def _snapshot(self) -> Iterator[bytes]:
        """As it is now, whenever it is read."""
        states: list[Line] = [*self._ranks.values(), *([self._host] if self._host else [])]
        indexes = {key: index.copy() for key, index in self._indexes.items()}
        return _lines_of(self._model, states, indexes)


def _lines_of(
    model: str, states: Sequence[Line], indexes: Mapping[tuple[int | None, Tier], ToldIndex]
) -> Iterator[bytes]:
    yield b"".join(map(encode_line, [Begin(model=model), *states]))
    for (rank, tier), index in indexes.items():
        for run in index.runs(max_names=_NAMES_A_LINE):
            yield encode_line(line_of_run(run, tier, rank))
    yield encode_line(Live())
