"""How much of a disk the third tier gets: checked before anything is written, and said in one sentence.

Knows the machine's mounts; nothing of blocks. The kind of a filesystem is asked for twice, since either
answer may be missing: its name in /proc/self/mountinfo, and its number from statfs(2).
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

from keepwarm.backend.disk_segment import segment_number
from keepwarm.core.errors import BadSetting

_FLAG = "--disk-cache-gb"

_NETWORK_NUMBERS = {
    0x6969: "nfs",
    0xFF534D42: "cifs",
    0xFE534D42: "smb",
    0x517B: "smbfs",
    0x01021997: "9p",
    0x00C36400: "ceph",
    0x0BD00BD0: "lustre",
    0x5346414F: "afs",
    0x73757245: "coda",
    0x7461636F: "ocfs2",
    0x01161970: "gfs2",
    0x47504653: "gpfs",
    0x19830326: "beegfs",
    0x20030528: "pvfs2",
    0xAAD7AAEA: "panfs",
    0x786F4256: "vboxsf",
}
"""f_type in statfs(2), as linux/magic.h and the filesystems' own sources have it."""

_NETWORK_NAMES = frozenset(
    {"nfs4", "smb2", "smb3", "acfs", "glusterfs", "virtiofs", "wekafs", "orangefs", "davfs", "prl_fs"}
    | {"fhgfs", "gfs", "mmfs", "kafs", "ncpfs", "drvfs", "vmhgfs"}
    | set(_NETWORK_NUMBERS.values())
)
_MEMORY_NUMBERS = {0x01021994: "tmpfs", 0x858458F6: "ramfs", 0x958458F6: "hugetlbfs"}
_MEMORY_NAMES = frozenset({"devtmpfs", *_MEMORY_NUMBERS.values()})
_LOCAL_FUSE = frozenset({"fuseblk", "fuse.fuse-overlayfs", "fuse.mergerfs", "fuse.ntfs-3g"})
"""Of what runs in user space, the kinds that lie on this machine's own disks."""
_FUSE_NUMBER = 0x65735546

KEPT_FREE_SHARE = 0.05
"""Of a disk, what the tier leaves free for everybody else."""
KEPT_FREE_MOST_BYTES = 10**10
LEAST_BYTES = 10**7
"""Less than this holds no conversation of any model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filesystem:
    """Where a folder lies."""

    mount_point: str
    name: str
    """Its kind, as mountinfo has it; "" where that is not known."""
    number: int | None
    """Its kind, as statfs has it."""
    is_read_only: bool
    total_bytes: int
    free_bytes: int
    """For this user."""

    def refusal(self) -> str | None:
        """Why no disk cache may lie there."""
        name, number = self.name, self.number
        if name in _MEMORY_NAMES or number in _MEMORY_NUMBERS:
            kind = name or _MEMORY_NUMBERS.get(number or 0, "")
            return f"{kind}, which is memory and not a disk: --host-cache-gb is for that"
        if name in _NETWORK_NAMES or number in _NETWORK_NUMBERS:
            kind = name if name in _NETWORK_NAMES else _NETWORK_NUMBERS.get(number or 0, name)
            return f"{kind}, a network mount, where reading may take longer than computing again, and hang"
        is_fuse = name.startswith("fuse") or (number == _FUSE_NUMBER and not name)
        if is_fuse and name not in _LOCAL_FUSE:
            return f"{name or 'fuse'}, which is served by a program and may lie on a network"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskBudget:
    """What the tier gets."""

    num_bytes: int
    lowered: str | None
    """Where that is less than was asked for: one sentence for the log."""


def disk_budget(folder: Path, asked_gb: float) -> DiskBudget:
    """What `--disk-cache-gb` may take in `folder`, which is made when missing.

    Raises `BadSetting` with the reason: on a network, in memory, read-only, not writable, too full.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        filesystem = look_up(folder)
        ours = sum(path.stat().st_size for path in folder.iterdir() if segment_number(path) is not None)
    except OSError as error:
        raise BadSetting(f"{_FLAG} {asked_gb:g}: {folder}: {error.strerror or error}") from error
    budget = fit_budget(folder, asked_gb, filesystem, num_bytes_there=ours)
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise BadSetting(f"{_FLAG} {asked_gb:g}: {folder} is not writable for this user")
    return budget


def fit_budget(folder: Path, asked_gb: float, filesystem: Filesystem, *, num_bytes_there: int) -> DiskBudget:
    """`disk_budget` on a given filesystem, where the tier has `num_bytes_there` already."""
    where = f"{_FLAG} {asked_gb:g}: {folder} lies on {filesystem.mount_point}"
    if (refusal := filesystem.refusal()) is not None:
        raise BadSetting(f"{where}, which is {refusal} (see: stat -f {folder}); give a --data-dir elsewhere")
    if filesystem.is_read_only:
        raise BadSetting(f"{where}, which is mounted read-only")
    kept_free = min(KEPT_FREE_MOST_BYTES, int(filesystem.total_bytes * KEPT_FREE_SHARE))
    room = filesystem.free_bytes + num_bytes_there - kept_free
    asked = asked_gb * 1e9  # infinite, for all that fits
    room_text = (
        f"{_gb(filesystem.free_bytes)} free, of which {_gb(kept_free)} stay free; the disk cache has "
        f"{_gb(num_bytes_there)} there already"
    )
    if min(asked, room) < LEAST_BYTES:
        raise BadSetting(f"{where}, and less than {_gb(LEAST_BYTES)} is of no use: {room_text}")
    if room < asked:
        return DiskBudget(
            num_bytes=room, lowered=f"{_FLAG} lowered from {asked_gb:g} to {room / 1e9:.3g}: {room_text}"
        )
    return DiskBudget(num_bytes=int(asked), lowered=None)


def look_up(folder: Path) -> Filesystem:
    """The filesystem that an existing folder lies on. Raises `OSError`."""
    real = os.path.realpath(folder)
    try:
        mounts = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    except OSError:
        mounts = ""
    mount_point, name = find_mount(mounts, real)
    stat = os.statvfs(real)
    return Filesystem(
        mount_point=mount_point,
        name=name,
        number=_statfs_number(real),
        is_read_only=bool(stat.f_flag & os.ST_RDONLY),
        total_bytes=stat.f_blocks * stat.f_frsize,
        free_bytes=stat.f_bavail * stat.f_frsize,
    )


def find_mount(mountinfo: str, path: str) -> tuple[str, str]:
    """(mount point, kind) of the mount that the absolute `path` lies on; of several on one point, the last.

    Source: proc_pid_mountinfo(5).
    """
    best = "/", ""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(" "), after.split(" ")
        if len(fields) < 5 or not after:
            continue
        point = _unescape(fields[4])
        is_above = path == point or path.startswith(point.rstrip("/") + "/")
        if is_above and len(point) >= len(best[0]):
            best = point, kinds[0]
    return best


def _unescape(text: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text


def _statfs_number(path: str) -> int | None:
    """f_type, the first word of Linux's struct statfs, which Python's own statvfs leaves out."""
    statfs = getattr(ctypes.CDLL(None, use_errno=True), "statfs", None)
    if statfs is None:
        return None
    words = (ctypes.c_ulong * 64)()  # the structure takes 120 bytes
    if statfs(os.fsencode(path), words) != 0:
        return None
    return int(words[0]) & 0xFFFFFFFF


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.3g} GB"
