"""The bytes of the third tier's files. Knows no file system, no index and no budget.

    segment   [ header: 64 bytes │ record 0 │ record 1 │ … ]
    record    [ mark, name, parent, digest of the block, digest of this header: 76 bytes │ slot ]
    slot      [ its checksum in the arena's table: 8 bytes │ its block: slot_bytes ]

All records are of one length, so a damaged one hides no other. Little-endian. Digests are 16 bytes of
blake3; a record's are keyed by the identity, and bind it to its place, so that no record of another
model, installation, file or place is ever taken for this one. A slot's checksum goes along, so that what
went wrong in memory before it was written is still found when a device reads it again.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from blake3 import blake3

from keepwarm.core.hashing import HASH_BYTES
from keepwarm.core.host_tier import CHECKSUM_BYTES, HostArena, HostGeometry
from keepwarm.core.ids import BlockHash

FORMAT_VERSION = 1
"""Counts up whenever a byte below changes its meaning. Files of other versions are not read."""

_MAGIC = b"KEEPWARM"
_MARK = b"KWBLOCK\n"
VOID_MARK = b"KWVOID \n"
"""In the place of a record's mark: the block was found damaged, and nobody reads it again."""

_DIGEST_BYTES = 16
_HEADER = struct.Struct("<8sIIQQ16s")  # magic, version, block_size, slot_bytes, number, identity
HEADER_BYTES = _HEADER.size + _DIGEST_BYTES
_RECORD = struct.Struct(f"<8sI{HASH_BYTES}s{HASH_BYTES}s{_DIGEST_BYTES}s")  # mark, has_parent, names, digest
RECORD_HEADER_BYTES = _RECORD.size + _DIGEST_BYTES


class UnusableSegment(Exception):
    """A file that is not read; the message is the reason, for the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotViews:
    """Where a slot lies in memory, flat."""

    checksum: memoryview
    block: memoryview

    @classmethod
    def of(cls, arena: HostArena, slot: int) -> Self:
        """One slot of an arena."""
        layout, memory = arena.layout, arena.memory
        start = layout.slots_offset + slot * layout.slot_bytes
        return cls(
            checksum=memory[slot * CHECKSUM_BYTES : (slot + 1) * CHECKSUM_BYTES],
            block=memory[start : start + layout.slot_bytes],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordHeader:
    """What a record says of itself. `digest` is not checked against the block yet."""

    name: BlockHash
    parent: BlockHash | None
    digest: bytes


@dataclass(frozen=True)
class SegmentFormat:
    """Segments of one geometry."""

    geometry: HostGeometry

    @cached_property
    def _key(self) -> bytes:
        return blake3(self.geometry.identity, derive_key_context="keepwarm disk cache, records").digest(32)

    @cached_property
    def _identity(self) -> bytes:
        """Stands in the header for the identity, which may hold a secret."""
        context = "keepwarm disk cache, identity"
        return blake3(self.geometry.identity, derive_key_context=context).digest(_DIGEST_BYTES)

    @cached_property
    def record_bytes(self) -> int:
        return RECORD_HEADER_BYTES + CHECKSUM_BYTES + self.geometry.slot_bytes

    def offset(self, index: int) -> int:
        """Where record number `index` begins in its file."""
        return HEADER_BYTES + index * self.record_bytes

    def num_records(self, file_bytes: int) -> int:
        """Whole records in a file of that size."""
        return max(0, file_bytes - HEADER_BYTES) // self.record_bytes

    def header(self, number: int) -> bytes:
        """The first bytes of segment `number`."""
        geometry = self.geometry
        fields = _HEADER.pack(
            _MAGIC, FORMAT_VERSION, geometry.block_size, geometry.slot_bytes, number, self._identity
        )
        return fields + blake3(fields).digest(_DIGEST_BYTES)

    def check_header(self, raw: bytes, number: int) -> None:
        """Raises `UnusableSegment` unless `raw` begins segment `number` of this geometry."""
        if len(raw) < HEADER_BYTES:
            raise UnusableSegment(f"its header ends after {len(raw)} of {HEADER_BYTES} bytes")
        magic, version, block_size, slot_bytes, _, identity = _HEADER.unpack_from(raw)
        if magic != _MAGIC:
            raise UnusableSegment("it is no segment of a disk cache")
        if version != FORMAT_VERSION:
            raise UnusableSegment(f"it is of format version {version}, and this one reads {FORMAT_VERSION}")
        if blake3(raw[: _HEADER.size]).digest(_DIGEST_BYTES) != raw[_HEADER.size : HEADER_BYTES]:
            raise UnusableSegment("its header is damaged")
        if identity != self._identity:
            raise UnusableSegment("it is of another model, number format or cache key")
        geometry = self.geometry
        if (block_size, slot_bytes) != (geometry.block_size, geometry.slot_bytes):
            raise UnusableSegment(
                f"its blocks are of {block_size} tokens and {slot_bytes} bytes, and this rank's of "
                f"{geometry.block_size} and {geometry.slot_bytes}"
            )
        if raw[:HEADER_BYTES] != self.header(number):
            raise UnusableSegment(f"its header is not that of segment {number}")

    def record_header(
        self, place: tuple[int, int], name: BlockHash, parent: BlockHash | None, slot: SlotViews
    ) -> bytes:
        """The header of a record at `place`, (segment number, index)."""
        digest = self.slot_digest(name, parent, slot)
        fields = _RECORD.pack(_MARK, parent is not None, name, parent or bytes(HASH_BYTES), digest)
        return fields + self._place_digest(place, fields)

    def parse_record_header(self, place: tuple[int, int], raw: bytes) -> RecordHeader | None:
        """The header that stands at `place`; None where it is damaged."""
        fields, digest = raw[: _RECORD.size], raw[_RECORD.size :]
        if len(raw) != RECORD_HEADER_BYTES or digest != self._place_digest(place, fields):
            return None
        mark, has_parent, name, parent, block_digest = _RECORD.unpack(fields)
        if mark != _MARK:
            return None
        return RecordHeader(
            name=BlockHash(name), parent=BlockHash(parent) if has_parent else None, digest=block_digest
        )

    def slot_digest(self, name: BlockHash, parent: BlockHash | None, slot: SlotViews) -> bytes:
        """Of a slot and the names that it goes by."""
        names = _RECORD.pack(_MARK, parent is not None, name, parent or bytes(HASH_BYTES), b"")
        digest = blake3(names, key=self._key).update(slot.checksum).update(slot.block)
        return digest.digest(_DIGEST_BYTES)

    def _place_digest(self, place: tuple[int, int], fields: bytes) -> bytes:
        return blake3(struct.pack("<QQ", *place) + fields, key=self._key).digest(_DIGEST_BYTES)
