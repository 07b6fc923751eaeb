"""How much memory this process's system leaves it, and what says so. Reads /proc, cgroups, rlimits."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

_CAP_IPC_LOCK: Final = 14  # linux/capability.h
_NO_LIMIT_V1: Final = 1 << 60
"""cgroup v1 says "none" with a number near 2^63."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """So many bytes may still be taken, and why."""

    num_bytes: int
    reason: str
    """Goes on a sentence after "because"."""
    is_shared: bool = False
    """Whoever else runs here takes from the same bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where to look; another folder in tests."""

    proc: Path = Path("/proc")
    cgroup: Path = Path("/sys/fs/cgroup")

    def limits(self, *, will_pin: bool) -> list[Limit]:
        """All that apply to shared memory that is mapped; to locked memory only if it will be pinned."""
        limits = [*self._free_memory(), *self._cgroups()]
        limits += _rlimit(resource.RLIMIT_FSIZE, "a file's size, that of shared memory too", "ulimit -f")
        limits += self._address_space()
        if will_pin and not self._may_lock_memory():
            limits += _rlimit(resource.RLIMIT_MEMLOCK, "locked memory", "ulimit -l")
        return limits

    def _free_memory(self) -> Iterator[Limit]:
        for line in _read(self.proc / "meminfo").splitlines():
            if line.startswith("MemAvailable:"):
                num_bytes = int(line.split()[1]) * 1024
                reason = f"{gigabytes(num_bytes)} of the machine's memory are free"
                yield Limit(num_bytes=num_bytes, reason=reason, is_shared=True)

    def _cgroups(self) -> Iterator[Limit]:
        """Of our own group and all that it lies in, of both versions."""
        for line in _read(self.proc / "self/cgroup").splitlines():
            _number, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if not controllers:
                yield from self._limits_above(self.cgroup, path, _V2)
            elif "memory" in controllers.split(","):
                yield from self._limits_above(self.cgroup / "memory", path, _V1)

    def _limits_above(self, mount: Path, path: str, files: _CgroupFiles) -> Iterator[Limit]:
        folder = mount / path.lstrip("/")
        if not folder.is_dir():  # a container sees its own group as the root
            folder = mount
        while True:
            limit = files.limit_of(folder)
            if limit is not None:
                yield limit
            if folder == mount or mount not in folder.parents:
                return
            folder = folder.parent

    def _address_space(self) -> Iterator[Limit]:
        """What is left of it: every process that has the memory maps it whole."""
        words = _read(self.proc / "self/statm").split()
        taken = int(words[0]) * resource.getpagesize() if words else 0
        for limit in _rlimit(resource.RLIMIT_AS, "a process's address space", "ulimit -v"):
            yield replace(limit, num_bytes=max(0, limit.num_bytes - taken), is_shared=True)

    def _may_lock_memory(self) -> bool:
        for line in _read(self.proc / "self/status").splitlines():
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> _CAP_IPC_LOCK & 1)
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class _CgroupFiles:
    limit: str
    used: str
    inactive: str
    """Of memory.stat: page cache that is given back before memory is refused."""

    def limit_of(self, folder: Path) -> Limit | None:
        limit, used = _read(folder / self.limit).strip(), _read(folder / self.used).strip()
        if not (limit.isdigit() and used.isdigit()) or int(limit) >= _NO_LIMIT_V1:
            return None
        num_bytes = max(0, int(limit) - int(used) + self._cache_bytes(folder))
        reason = f"{folder / self.limit}, {gigabytes(int(limit))}, leaves {gigabytes(num_bytes)}"
        return Limit(num_bytes=num_bytes, reason=reason, is_shared=True)

    def _cache_bytes(self, folder: Path) -> int:
        lines = (line.split() for line in _read(folder / "memory.stat").splitlines())
        return sum(int(words[1]) for words in lines if words[0] == self.inactive)


_V2 = _CgroupFiles(limit="memory.max", used="memory.current", inactive="inactive_file")
_V1 = _CgroupFiles(
    limit="memory.limit_in_bytes", used="memory.usage_in_bytes", inactive="total_inactive_file"
)


def gigabytes(num_bytes: int) -> str:
    """For people, in the unit of the settings (10^9 bytes)."""
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e9:.2g} GB"


def _rlimit(which: int, what: str, command: str) -> list[Limit]:
    soft, _hard = resource.getrlimit(which)
    if soft == resource.RLIM_INFINITY:
        return []
    return [Limit(num_bytes=soft, reason=f"{what} is limited to {gigabytes(soft)} ({command})")]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def has_nvidia_device() -> bool:
    """Whether blocks may be copied by a device for which memory is pinned."""
    return os.path.exists("/dev/nvidiactl")
