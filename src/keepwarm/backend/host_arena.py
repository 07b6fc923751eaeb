"""The segment that L1 lies in: memory without a name, which ends with the last process that has it.

A memfd has no entry in /dev/shm, so nothing is left behind and /dev/shm's size does not matter. Its
pages are taken when they are first written.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os

from keepwarm.core.errors import BadSetting
from keepwarm.core.host_tier import ArenaLayout, HostArena

_NAME = "keepwarm-host-cache"  # as /proc/PID/maps shows it


class MappedArena:
    """A segment, mapped into this process until `close`."""

    def __init__(self, descriptor: int, layout: ArenaLayout) -> None:
        """The descriptor stays the caller's. Raises `OSError`."""
        self._mapping = mmap.mmap(descriptor, layout.total_bytes)
        self.arena = HostArena(memory=memoryview(self._mapping), layout=layout)

    def close(self) -> None:
        """Give the mapping back, unless somebody still looks at it: then it ends with its last view."""
        with contextlib.suppress(BufferError):
            self.arena.memory.release()
            self._mapping.close()


def make_segment(layout: ArenaLayout, setting: str) -> int:
    """A descriptor of a new segment, which nobody can shorten: a rank that did would kill the others.

    Raises `BadSetting` naming `setting` where the system refuses it.
    """
    descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, layout.total_bytes)
        fcntl.fcntl(
            descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        )
    except OSError as error:
        os.close(descriptor)
        raise BadSetting(
            f"{setting}: {layout.total_bytes / 1e9:.2f} GB of shared memory are refused by the system: "
            f"{error.strerror}"
        ) from error
    return descriptor
