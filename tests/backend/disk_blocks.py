"""Blocks with names, for tests of the third tier. Run as a program, it fills a folder and says so."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from blake3 import blake3

from keepwarm.backend.disk_format import SlotViews
from keepwarm.backend.disk_store import DiskStore
from keepwarm.core.host_tier import CHECKSUM_BYTES, HostGeometry
from keepwarm.core.ids import BlockHash

GEOMETRY = HostGeometry(identity=b"a model and a key", block_size=16, slot_bytes=1000)


def chain(label: str, length: int) -> list[BlockHash]:
    """The names of one conversation's blocks."""
    return [BlockHash(blake3(f"{label} {index}".encode()).digest(16)) for index in range(length)]


SLOT_BYTES = CHECKSUM_BYTES + GEOMETRY.slot_bytes


def slot_of(name: BlockHash) -> bytes:
    """Checksum and block that this name stands for, wherever they are asked for."""
    return blake3(name).digest(SLOT_BYTES)


def slot_in(memory: bytes | bytearray) -> SlotViews:
    """A checksum and a block, end to end."""
    view = memoryview(memory)
    return SlotViews(checksum=view[:CHECKSUM_BYTES], block=view[CHECKSUM_BYTES:])


def put(store: DiskStore, names: list[BlockHash], *, parent: BlockHash | None = None) -> int:
    """Append the blocks of these names."""
    return store.append(parent, names, [slot_in(slot_of(name)) for name in names])


def get(store: DiskStore, names: list[BlockHash]) -> list[bytes]:
    """Read back as many leading ones as are sound; never a wrong byte, or it fails."""
    slots = [bytearray(SLOT_BYTES) for _ in names]
    count = store.read_into(names, [slot_in(slot) for slot in slots])
    sound = [bytes(slot) for slot in slots[:count]]
    assert sound == [slot_of(name) for name in names[:count]]
    return sound


def main(folder: str, label: str, length: int) -> None:
    store = DiskStore(Path(folder), GEOMETRY, 10**7)
    print(put(store, chain(label, length)), flush=True)  # noqa: T201 -- what the test waits for
    if sys.stdin.readline():
        store.close()
        return
    time.sleep(60)  # to be killed


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
