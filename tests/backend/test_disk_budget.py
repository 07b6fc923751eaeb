from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from keepwarm.backend import disk_budget as module
from keepwarm.backend.disk_budget import Filesystem, disk_budget, find_mount, fit_budget, look_up
from keepwarm.core.errors import BadSetting

LOCAL = Filesystem(
    mount_point="/data",
    name="ext4",
    number=0xEF53,
    is_read_only=False,
    total_bytes=200 * 10**9,
    free_bytes=50 * 10**9,
)
FOLDER = Path("/data/keepwarm/disk-cache")

MOUNTS = """\
21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw
30 21 0:26 / /dev/shm rw,nosuid - tmpfs tmpfs rw
31 21 0:40 /export /home rw,relatime shared:3 master:1 - nfs4 files:/export rw,vers=4.2
32 31 254:16 / /home/local\\040disk rw - xfs /dev/vdb rw
33 21 0:41 / /mnt rw - ext4 /dev/vdc rw
34 33 0:42 / /mnt rw - fuse.sshfs me@there:/ rw
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/var/lib/keepwarm", ("/", "ext4")),
        ("/dev/shm/x", ("/dev/shm", "tmpfs")),
        ("/dev/shmx", ("/", "ext4")),
        ("/home/me", ("/home", "nfs4")),
        ("/home/local disk/x", ("/home/local disk", "xfs")),
        ("/mnt/x", ("/mnt", "fuse.sshfs")),
        ("/mnt", ("/mnt", "fuse.sshfs")),
    ],
)
def test_a_path_lies_on_the_deepest_and_last_mount_above_it(path: str, expected: tuple[str, str]) -> None:
    assert find_mount(MOUNTS, path) == expected


def test_lines_that_are_no_mounts_are_passed_over() -> None:
    assert find_mount("\n - \nx y - z\n", "/a") == ("/", "")


@pytest.mark.parametrize(
    ("name", "number", "reason"),
    [
        ("nfs4", 0x6969, "nfs4, a network mount"),
        ("", 0x6969, "nfs, a network mount"),
        ("overlay", 0xFF534D42, "cifs, a network mount"),
        ("cifs", None, "cifs, a network mount"),
        ("smb3", 0xFE534D42, "smb3, a network mount"),
        ("9p", 0x01021997, "9p, a network mount"),
        ("ceph", 0x00C36400, "ceph, a network mount"),
        ("lustre", 0x0BD00BD0, "lustre, a network mount"),
        ("virtiofs", 0x65735546, "virtiofs, a network mount"),
        ("fuse.sshfs", 0x65735546, "fuse.sshfs, which is served by a program"),
        ("fuse.glusterfs", 0x65735546, "fuse.glusterfs, which is served by a program"),
        ("fuse", 0x65735546, "fuse, which is served by a program"),
        ("", 0x65735546, "fuse, which is served by a program"),
        ("tmpfs", 0x01021994, "tmpfs, which is memory and not a disk"),
        ("", 0x858458F6, "ramfs, which is memory and not a disk"),
    ],
)
def test_what_is_no_local_disk_is_refused_with_the_reason(name: str, number: int | None, reason: str) -> None:
    elsewhere = replace(LOCAL, name=name, number=number)
    with pytest.raises(BadSetting) as refused:
        fit_budget(FOLDER, 10, elsewhere, num_bytes_there=0)
    text = str(refused.value)
    assert text.startswith(f"--disk-cache-gb 10: {FOLDER} lies on /data, which is {reason}")
    assert f"stat -f {FOLDER}" in text


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("ext4", 0xEF53),
        ("xfs", 0x58465342),
        ("btrfs", 0x9123683E),
        ("zfs", 0x2FC12FC1),
        ("overlay", 0x794C7630),
        ("fuse.fuse-overlayfs", 0x65735546),
        ("fuseblk", 0x65735546),
        ("", None),
    ],
)
def test_a_local_disk_gets_what_was_asked_for(name: str, number: int | None) -> None:
    budget = fit_budget(FOLDER, 10, replace(LOCAL, name=name, number=number), num_bytes_there=0)
    assert (budget.num_bytes, budget.lowered) == (10**10, None)


def test_a_budget_that_the_disk_cannot_hold_is_lowered_and_says_so() -> None:
    budget = fit_budget(FOLDER, 100, LOCAL, num_bytes_there=5 * 10**9)
    assert budget.num_bytes == 45 * 10**9
    assert budget.lowered == (
        "--disk-cache-gb lowered from 100 to 45: 50 GB free, of which 10 GB stay free; the disk cache has 5 "
        "GB there already"
    )


def test_all_that_fits_can_be_asked_for() -> None:
    assert fit_budget(FOLDER, float("inf"), LOCAL, num_bytes_there=0).num_bytes == 40 * 10**9


def test_what_the_cache_holds_already_counts_as_room() -> None:
    nearly_full = replace(LOCAL, free_bytes=11 * 10**9)
    assert fit_budget(FOLDER, 20, nearly_full, num_bytes_there=19 * 10**9).lowered is None


def test_a_full_disk_is_refused() -> None:
    with pytest.raises(BadSetting, match=r"less than 0\.01 GB is of no use: 10 GB free"):
        fit_budget(FOLDER, 20, replace(LOCAL, free_bytes=10**10), num_bytes_there=0)


def test_a_budget_that_holds_nothing_is_refused() -> None:
    with pytest.raises(BadSetting, match=r"--disk-cache-gb 1e-09: .* less than 0\.01 GB is of no use"):
        fit_budget(FOLDER, 1e-9, LOCAL, num_bytes_there=0)


def test_a_read_only_mount_is_refused() -> None:
    with pytest.raises(BadSetting, match="lies on /data, which is mounted read-only"):
        fit_budget(FOLDER, 1, replace(LOCAL, is_read_only=True), num_bytes_there=0)


def test_the_folder_is_made_and_its_own_filesystem_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "look_up", lambda _: LOCAL)  # whatever this test's folder lies on
    assert disk_budget(tmp_path / "a" / "disk-cache", 1).num_bytes == 10**9
    assert (tmp_path / "a" / "disk-cache").stat().st_mode & 0o777 == 0o700


def test_a_folder_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadSetting, match=r"--disk-cache-gb 1: .*file/disk-cache: Not a directory"):
        disk_budget(tmp_path / "file" / "disk-cache", 1)


def test_the_machine_is_really_asked(tmp_path: Path) -> None:
    there = look_up(tmp_path)
    assert there.name
    assert there.number
    assert there.total_bytes >= there.free_bytes > 0
    assert str(tmp_path.resolve()).startswith(there.mount_point)


def test_shared_memory_is_told_from_a_disk() -> None:
    shared_memory = Path("/dev/shm")
    if not shared_memory.is_dir():
        pytest.skip("there is no /dev/shm here")
    assert "is memory and not a disk" in (look_up(shared_memory).refusal() or "")
