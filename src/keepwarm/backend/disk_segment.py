"""One open file of the third tier: scan it, append a block, read one back. Knows no index and no budget."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from keepwarm.backend.disk_format import (
    HEADER_BYTES,
    RECORD_HEADER_BYTES,
    VOID_MARK,
    RecordHeader,
    SegmentFormat,
    SlotViews,
)
from keepwarm.core.ids import BlockHash

_FILE_NAME = re.compile(r"segment-([0-9a-f]{16})\.kv")


def segment_number(path: Path) -> int | None:
    """The number in a segment's file name; None: the file is none of ours, whatever it holds."""
    found = _FILE_NAME.fullmatch(path.name)
    return int(found[1], 16) if found else None


class Segment:
    """A file that blocks are appended to until it is full. Close it."""

    def __init__(self, path: Path, descriptor: int, number: int, form: SegmentFormat) -> None:
        self.path = path
        self.number = number
        self.used_at = 0
        """On the store's own count: the segment that was not used for the longest goes first."""
        self.num_live = 0
        """Records that the index names."""
        self._descriptor = descriptor
        self._form = form
        self.num_bytes = os.fstat(descriptor).st_size
        self.num_records = form.num_records(self.num_bytes)
        self.has_grown = False
        """Something was appended since it was opened."""

    @classmethod
    def create(cls, folder: Path, number: int, form: SegmentFormat) -> Self:
        """A new file, for its owner only. Raises `OSError`, and leaves nothing then."""
        path = folder / f"segment-{number:016x}.kv"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o600)
        try:
            _write_whole(descriptor, [memoryview(form.header(number))], 0)
        except OSError:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            raise
        return cls(path, descriptor, number, form)

    @classmethod
    def open(cls, path: Path, number: int, form: SegmentFormat) -> Self:
        """A file that is there. Raises `OSError`, `UnusableSegment`."""
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            form.check_header(os.pread(descriptor, HEADER_BYTES, 0), number)
            return cls(path, descriptor, number, form)
        except BaseException:
            os.close(descriptor)
            raise

    @property
    def has_torn_tail(self) -> bool:
        """Bytes after the last whole record: a write was cut off there. The next record overwrites them."""
        return self.num_bytes != self._form.offset(self.num_records)

    def scan(self) -> Iterator[tuple[int, RecordHeader | None]]:
        """Every record's header, None for a damaged one. Blocks are not read; void ones are left out."""
        for index in range(self.num_records):
            try:
                raw = os.pread(self._descriptor, RECORD_HEADER_BYTES, self._form.offset(index))
            except OSError:
                yield index, None
                continue
            if not raw.startswith(VOID_MARK):
                yield index, self._form.parse_record_header((self.number, index), raw)

    def append(self, name: BlockHash, parent: BlockHash | None, slot: SlotViews) -> int:
        """Write a record at the end; returns its index. Raises `OSError`; the file ends as before then."""
        index = self.num_records
        offset = self._form.offset(index)
        header = self._form.record_header((self.number, index), name, parent, slot)
        try:
            _write_whole(self._descriptor, [memoryview(header), slot.checksum, slot.block], offset)
        except OSError:
            os.ftruncate(self._descriptor, offset)
            self.num_bytes = offset
            raise
        self.num_records += 1
        self.has_grown = True
        self.num_bytes = self._form.offset(self.num_records)
        return index

    def will_read(self, index: int) -> None:
        """Let the system read a record ahead."""
        form = self._form
        advice = os.POSIX_FADV_WILLNEED
        os.posix_fadvise(self._descriptor, form.offset(index), form.record_bytes, advice)

    def read(self, index: int, name: BlockHash, parent: BlockHash | None, into: SlotViews) -> bool:
        """Fill `into` with a record's slot; False: it is damaged, and `into` may hold anything."""
        header = bytearray(RECORD_HEADER_BYTES)
        views = [memoryview(header), into.checksum, into.block]
        try:
            if not _read_whole(self._descriptor, views, self._form.offset(index)):
                return False
        except OSError:
            return False
        found = self._form.parse_record_header((self.number, index), bytes(header))
        if found is None or (found.name, found.parent) != (name, parent):
            return False
        return self._form.slot_digest(name, parent, into) == found.digest

    def void(self, index: int) -> None:
        """Mark a damaged record, so that no later start takes it into its index. Raises `OSError`."""
        os.pwrite(self._descriptor, VOID_MARK, self._form.offset(index))

    def sync(self) -> None:
        """What was written is on the disk now, and leaves the page cache. Raises `OSError`."""
        os.fsync(self._descriptor)
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        os.close(self._descriptor)


def _write_whole(descriptor: int, views: list[memoryview], offset: int) -> None:
    while views:
        written = os.pwritev(descriptor, views, offset)
        offset += written
        views = _after(views, written)


def _read_whole(descriptor: int, views: list[memoryview], offset: int) -> bool:
    """False: the file ends before."""
    while views:
        num_read = os.preadv(descriptor, views, offset)
        if num_read == 0:
            return False
        offset += num_read
        views = _after(views, num_read)
    return True


def _after(views: list[memoryview], num_bytes: int) -> list[memoryview]:
    """What is left of `views` once their first `num_bytes` are done."""
    left: list[memoryview] = []
    for view in views:
        done = min(num_bytes, len(view))
        num_bytes -= done
        if done < len(view):
            left.append(view[done:])
    return left
