"""The third tier: blocks in files of one folder, found again by the next process.

Owns the folder's files, the index of them and the budget. Knows neither L1 nor ranks: bytes come and
go by way of memory that the caller names.

    segment-0000000000000001.kv   oldest-used first: a whole segment goes when the budget is reached
    segment-0000000000000002.kv   ← blocks are appended to the newest one
    lock                          held (flock) by the one process that uses the folder

What may be believed: a record's header when the folder is opened (its digest is keyed), its block only
when it is read. Whatever does not fit is counted, logged and not used, which costs reading some tokens
again and nothing else. So nothing waits for the disk: a segment is synced when it is full and when the
store is closed; what a crash tears off is a damaged record.

Files of ours that cannot be used (another model, number format, block size, cache key or version, or a
damaged header) stay as they are, count against the budget, and are the first to go when room is
needed. "Ours" are regular files of this folder that are named as above; no other file is touched.

One thread calls everything but `find`, `contents`, `stats` and `take_events`, which any thread may call.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from keepwarm.backend.disk_format import HEADER_BYTES, RecordHeader, SegmentFormat, SlotViews, UnusableSegment
from keepwarm.backend.disk_segment import Segment, segment_number
from keepwarm.core.errors import BadSetting
from keepwarm.core.hashing import join_hashes
from keepwarm.core.host_tier import HostGeometry
from keepwarm.core.ids import BlockHash
from keepwarm.core.rank_messages import CacheEvent

logger = logging.getLogger(__name__)

NUM_SEGMENTS = 32
"""Into so many files a budget is cut: what goes at once when room is needed, and how many are open."""

_LOCK_FILE = "lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskStats:
    """Gauges now, and counters (num_*_total) since the store was opened."""

    num_blocks: int
    num_bytes: int
    """Of all files that are ours, usable or not."""
    num_damaged_total: int
    """Records that were not what they should be, a torn end of a file included."""
    num_unusable_files: int
    num_read_total: int
    num_written_total: int
    num_evicted_total: int
    stopped: str | None
    """Why nothing is written any more."""


@dataclass(frozen=True, slots=True)
class _Place:
    segment: Segment
    index: int
    parent: BlockHash | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _UnusableFile:
    path: Path
    num_bytes: int


class DiskStore:
    """Blocks on disk by name. A name's parent is there whenever the name is.

    `_places` is in an order in which each parent comes before its children.
    """

    def __init__(self, directory: Path, geometry: HostGeometry, budget_bytes: int) -> None:
        """Takes the folder, which is made when missing, and indexes what it holds.

        Raises `BadSetting` when another process has it, when it cannot be used, or when not even one
        block fits the budget.
        """
        self._folder = directory
        self._form = SegmentFormat(geometry)
        self._budget_bytes = budget_bytes
        self._segment_bytes = max(HEADER_BYTES + self._form.record_bytes, budget_bytes // NUM_SEGMENTS)
        if self._segment_bytes > budget_bytes:
            raise BadSetting(
                f"--disk-cache-gb {budget_bytes / 1e9:g}: one block of this model takes "
                f"{self._segment_bytes} bytes, and {budget_bytes} are allowed"
            )
        self._lock = Lock()
        self._places: dict[BlockHash, _Place] = {}
        self._segments: dict[int, Segment] = {}
        self._unusable: list[_UnusableFile] = []
        self._events: list[CacheEvent] = []
        self._clock = 0
        self._stays_from: int | None = None
        self._last_number = 0
        self._num_damaged = self._num_read = self._num_written = self._num_evicted = 0
        self._stopped: str | None = None
        self._lock_descriptor = lock_folder(directory)
        try:
            self._load()
            self._make_room(0)
        except OSError as error:
            self.close()
            raise BadSetting(f"disk cache {directory}: {error.strerror or error}") from error
        except BaseException:
            self.close()
            raise

    # -- reading -------------------------------------------------------------------------------

    def find(self, after: BlockHash | None, names: Sequence[BlockHash]) -> int:
        """How many leading `names`, the first one a child of `after`, are here. Any thread."""
        with self._lock:
            for count, name in enumerate(names):
                place = self._places.get(name)
                if place is None or place.parent != after:
                    return count
                after = name
        return len(names)

    def use(self, name: BlockHash) -> None:
        """Count a block, and all that stands before it, as used now."""
        self._use(name, ())

    def keep_what_is_used(self) -> None:
        """From now on nothing makes room for anything else that is used from now on."""
        self._clock += 1
        self._stays_from = self._clock

    def read_into(self, names: Sequence[BlockHash], slots: Sequence[SlotViews]) -> int:
        """Fill `slots` with the blocks of `names`; returns how many leading ones are sound.

        The others may hold anything. A damaged block is forgotten, with all that follow it.
        """
        self._use(names[0] if names else None, names)
        for name in names:
            if (place := self._places.get(name)) is not None:
                place.segment.will_read(place.index)
        for count, (name, slot) in enumerate(zip(names, slots, strict=True)):
            place = self._places.get(name)
            if place is None:
                return count
            if not place.segment.read(place.index, name, place.parent, slot):
                self._give_up(name, place)
                return count
            self._num_read += 1
        return len(names)

    def _give_up(self, name: BlockHash, place: _Place) -> None:
        self._num_damaged += 1
        logger.warning("%s: block %d is damaged and not used", place.segment.path, place.index)
        self._void(place)
        self._forget({name}, "dropped")

    def _void(self, place: _Place) -> None:
        try:
            place.segment.void(place.index)
        except OSError as error:
            logger.warning("%s cannot be written: %s", place.segment.path, error)

    def drop(self, names: Sequence[BlockHash]) -> None:
        """These blocks are wrong, though they are as they were written: neither they nor what follows
        them is found again, now or by a later start."""
        for name in names:
            if (place := self._places.get(name)) is not None:
                self._void(place)
        self._forget({name for name in names if name in self._places}, "dropped")

    def drop_written(self) -> None:
        """What was written since the store was opened is gone, and nothing more is written: the memory that
        it came from has failed."""
        for segment in [segment for segment in self._segments.values() if segment.has_grown]:
            self._remove(segment, "dropped")
        self._stopped = "the memory that blocks come from has failed"

    # -- writing -------------------------------------------------------------------------------

    def append(self, parent: BlockHash | None, names: Sequence[BlockHash], slots: Sequence[SlotViews]) -> int:
        """Keep the blocks of `names`, the first one a child of `parent`, where they are not here yet.

        Returns how many leading ones are here now: fewer than all where `parent` is not, where
        nothing older can make room, or where the disk takes no more (`stats().stopped`).
        """
        if parent is not None and parent not in self._places:
            return 0
        self._use(parent, names)
        before, stored = parent, list[BlockHash]()
        count = 0
        for name, slot in zip(names, slots, strict=True):
            if name not in self._places:
                if not self._append(before, name, slot):
                    break
                stored.append(name)
            before = name
            count += 1
        self._tell_stored(stored, "demoted")
        return count

    def _append(self, parent: BlockHash | None, name: BlockHash, slot: SlotViews) -> bool:
        if self._stopped is not None:
            return False
        try:
            segment = self._segment_with_room()
            if segment is None:
                return False
            index = segment.append(name, parent, slot)
        except OSError as error:
            self._stop_writing(error)
            return False
        segment.used_at = self._clock
        self._num_written += 1
        self._add(name, _Place(segment, index, parent))
        return True

    def _segment_with_room(self) -> Segment | None:
        """The segment that the next record goes to. None: all that is here is in use."""
        newest = self._segments.get(self._last_number)
        record_bytes = self._form.record_bytes
        if newest is not None and newest.num_bytes + record_bytes <= self._segment_bytes:
            return newest if self._make_room(record_bytes, keep=newest) else None
        if newest is not None:
            newest.sync()
        if not self._make_room(HEADER_BYTES + record_bytes):
            return None
        self._last_number += 1
        segment = Segment.create(self._folder, self._last_number, self._form)
        self._segments[segment.number] = segment
        return segment

    def _stop_writing(self, error: OSError) -> None:
        self._stopped = error.strerror or str(error)
        logger.error(
            "disk cache %s takes no more blocks until the next start: %s; what is there is still read, and "
            "serving goes on",
            self._folder,
            self._stopped,
        )

    def _tell_stored(self, names: list[BlockHash], reason: str) -> None:
        with self._lock:
            self._events += self._stored_events(names, reason)

    def _stored_events(self, names: list[BlockHash], reason: str) -> Iterator[CacheEvent]:
        """One event for each piece of a chain, parents first."""
        start = 0
        for end in range(1, len(names) + 1):
            if end == len(names) or self._places[names[end]].parent != names[end - 1]:
                parent = self._places[names[start]].parent
                piece = join_hashes(names[start:end])
                yield CacheEvent(kind="stored", tier="disk", names=piece, parent=parent or b"", reason=reason)
                start = end

    # -- what goes -----------------------------------------------------------------------------

    def _make_room(self, num_bytes: int, *, keep: Segment | None = None) -> bool:
        """Whether `num_bytes` more fit the budget, after what was longest unused has gone.

        What the running call uses stays, and so does `keep`.
        """
        stays_from = self._clock if self._stays_from is None else self._stays_from
        while self._num_bytes() + num_bytes > self._budget_bytes:
            if self._unusable:
                self._unusable.pop(0).path.unlink(missing_ok=True)
                continue
            victims = [
                segment
                for segment in self._segments.values()
                if segment is not keep and (segment.used_at < stays_from or not segment.num_live)
            ]
            if not victims:
                return False
            self._remove(min(victims, key=lambda segment: (segment.num_live > 0, segment.used_at)), "room")
        return True

    def _num_bytes(self) -> int:
        usable = sum(segment.num_bytes for segment in list(self._segments.values()))
        return usable + sum(file.num_bytes for file in list(self._unusable))

    def _remove(self, segment: Segment, reason: str) -> None:
        names = {name for name, place in self._places.items() if place.segment is segment}
        self._forget(names, reason)
        del self._segments[segment.number]
        segment.close()
        segment.path.unlink(missing_ok=True)

    def _forget(self, names: set[BlockHash], reason: str) -> None:
        """These names and all that follow them are here no more; their bytes lie where they are."""
        if not names:
            return
        gone = dict.fromkeys(names)
        for name, place in self._places.items():
            if place.parent in gone:
                gone[name] = None
        with self._lock:
            for name in gone:
                self._places.pop(name).segment.num_live -= 1
            self._num_evicted += len(gone)
            self._events.append(
                CacheEvent(kind="evicted", tier="disk", names=join_hashes(list(gone)), reason=reason)
            )

    def _use(self, last: BlockHash | None, names: Sequence[BlockHash]) -> None:
        """Count the segments of `names`, of `last` and of all that stands before it as used now.

        So a segment is never used longer ago than what follows its blocks.
        """
        self._clock += 1
        for name in names:
            if (place := self._places.get(name)) is not None:
                place.segment.used_at = self._clock
        while last is not None and (place := self._places.get(last)) is not None:
            place.segment.used_at = self._clock
            last = place.parent

    # -- opening and closing -------------------------------------------------------------------

    def _load(self) -> None:
        ours = sorted(
            (path.stat().st_mtime_ns, number, path)
            for path in self._folder.iterdir()
            if (number := segment_number(path)) is not None and not path.is_symlink() and path.is_file()
        )
        found: dict[BlockHash, _Place] = {}
        for _, number, path in ours:
            self._last_number = max(self._last_number, number)
            self._clock += 1
            try:
                segment = Segment.open(path, number, self._form)
            except (OSError, UnusableSegment) as error:
                logger.warning("%s is not used: %s", path, error)
                self._unusable.append(_UnusableFile(path=path, num_bytes=path.stat().st_size))
                continue
            segment.used_at = self._clock
            self._segments[number] = segment
            for index, header in self._scan(segment):
                found[header.name] = _Place(segment, index, header.parent)
        self._add_whole_chains(found)
        self._clock += 1
        if ours:
            logger.info("disk cache %s: %s", self._folder, self.stats())

    def _scan(self, segment: Segment) -> list[tuple[int, RecordHeader]]:
        headers = list(segment.scan())
        sound = [(index, header) for index, header in headers if header is not None]
        num_damaged = len(headers) - len(sound) + segment.has_torn_tail
        if num_damaged:
            logger.warning("%s: %d damaged records are not used", segment.path, num_damaged)
        self._num_damaged += num_damaged
        return sound

    def _add_whole_chains(self, found: dict[BlockHash, _Place]) -> None:
        """Those of `found` whose parents are there up to a prefix's beginning, parents first."""
        loose: set[BlockHash] = set()
        for name in found:
            chain: dict[BlockHash, None] = {}
            at: BlockHash | None = name
            while at in found and at not in self._places and at not in loose and at not in chain:
                chain[at] = None
                at = found[at].parent
            if at is None or at in self._places:
                for link in reversed(chain):
                    self._add(link, found[link])
            else:
                loose.update(chain)
        self._tell_stored(list(self._places), "loaded")

    def _add(self, name: BlockHash, place: _Place) -> None:
        with self._lock:
            self._places[name] = place
            place.segment.num_live += 1

    def sync(self) -> None:
        """All that was written is on the disk. Raises nothing: what is lost is read again."""
        base_ns = time.time_ns()
        by_use = sorted(self._segments.values(), key=lambda segment: segment.used_at)
        try:
            newest = self._segments.get(self._last_number)
            if newest is not None:
                newest.sync()
            for order, segment in enumerate(by_use):  # the next start learns from it which was used last
                os.utime(segment.path, ns=(base_ns, base_ns + order))
        except OSError as error:
            logger.warning("disk cache %s is not synced: %s", self._folder, error)

    def close(self) -> None:
        """Sync, and let the folder go. Once."""
        self.sync()
        for segment in self._segments.values():
            segment.close()
        os.close(self._lock_descriptor)

    # -- looking in ----------------------------------------------------------------------------

    def take_events(self) -> list[CacheEvent]:
        """What became of blocks since the last call, in order; at first, what the folder held. Any thread."""
        with self._lock:
            events, self._events = self._events, []
        return events

    def contents(self) -> list[CacheEvent]:
        """What is here, as events that would have brought it here. Any thread."""
        with self._lock:
            return list(self._stored_events(list(self._places), "loaded"))

    def stats(self) -> DiskStats:
        """Any thread."""
        return DiskStats(
            num_blocks=len(self._places),
            num_bytes=self._num_bytes(),
            num_damaged_total=self._num_damaged,
            num_unusable_files=len(self._unusable),
            num_read_total=self._num_read,
            num_written_total=self._num_written,
            num_evicted_total=self._num_evicted,
            stopped=self._stopped,
        )


def lock_folder(directory: Path) -> int:
    """A descriptor that holds the folder until it is closed. Raises `BadSetting` when another has it."""
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(
            directory / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
    except OSError as error:
        raise BadSetting(f"disk cache {directory}: {error.strerror or error}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if not isinstance(error, BlockingIOError):
            raise BadSetting(f"disk cache {directory} cannot be locked: {error.strerror or error}") from error
        raise BadSetting(
            f"disk cache {directory}: another process uses this folder; give another --data-dir, or "
            "--disk-cache-gb 0"
        ) from error
    return descriptor
