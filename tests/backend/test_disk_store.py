from __future__ import annotations

import errno
import logging
import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keepwarm.backend import disk_format
from keepwarm.backend.disk_format import HEADER_BYTES, RECORD_HEADER_BYTES, SegmentFormat, SlotViews
from keepwarm.backend.disk_store import DiskStore
from keepwarm.core.errors import BadSetting
from keepwarm.core.hashing import BlockNames
from keepwarm.core.host_tier import ArenaLayout, HostArena, HostGeometry
from keepwarm.core.ids import BlockHash
from tests.backend.disk_blocks import GEOMETRY, chain, get, put, slot_of

BUDGET = 10**7
RECORD_BYTES = SegmentFormat(GEOMETRY).record_bytes


@contextmanager
def opened(
    folder: Path, *, geometry: HostGeometry = GEOMETRY, budget_bytes: int = BUDGET
) -> Iterator[DiskStore]:
    store = DiskStore(folder, geometry, budget_bytes)
    try:
        yield store
    finally:
        store.close()


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("segment-*.kv"))


def blocks_budget(num_blocks: int) -> int:
    """Room for so many blocks, one a file."""
    return num_blocks * (HEADER_BYTES + RECORD_BYTES)


# -- keeping and finding ---------------------------------------------------------------------------


def test_what_was_put_is_found_and_read_back(tmp_path: Path) -> None:
    names = chain("a", 20)
    with opened(tmp_path) as store:
        assert store.find(None, names) == 0
        assert put(store, names) == 20
        assert store.find(None, names) == 20
        assert store.find(names[4], names[5:]) == 15
        assert store.find(None, [*names[:7], *chain("b", 3)]) == 7
        assert store.find(None, names[3:]) == 0
        assert len(get(store, names)) == 20
        assert len(get(store, names[11:])) == 9


def test_only_what_is_missing_is_written(tmp_path: Path) -> None:
    names = chain("a", 6)
    with opened(tmp_path) as store:
        put(store, names[:4])
        size = store.stats().num_bytes
        assert put(store, names[:4]) == 4
        assert store.stats().num_bytes == size
        assert put(store, names) == 6
        assert store.stats().num_written_total == 6


def test_a_block_without_its_parent_is_not_taken(tmp_path: Path) -> None:
    names = chain("a", 4)
    with opened(tmp_path) as store:
        assert put(store, names[2:], parent=names[1]) == 0
        assert put(store, names[:2]) == 2
        assert put(store, names[2:], parent=names[1]) == 2


def test_joined_names_are_names_too(tmp_path: Path) -> None:
    names = chain("a", 5)
    with opened(tmp_path) as store:
        put(store, names)
        assert store.find(None, BlockNames(b"".join(names))) == 5


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "disk-cache"
    with opened(folder) as store:
        put(store, chain("a", 1))
    assert folder.stat().st_mode & 0o777 == 0o700
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in folder.iterdir())


def test_the_identity_is_not_written_down(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, chain("a", 1))
    assert GEOMETRY.identity not in segments(tmp_path)[0].read_bytes()


# -- the next process ------------------------------------------------------------------------------


def test_the_next_store_goes_on_where_this_one_ended(tmp_path: Path) -> None:
    names = chain("a", 30)
    with opened(tmp_path) as store:
        put(store, names[:20])
    with opened(tmp_path) as store:
        assert store.find(None, names) == 20
        assert len(get(store, names[:20])) == 20
        assert put(store, names) == 30
    assert len(segments(tmp_path)) == 1
    with opened(tmp_path) as store:
        assert len(get(store, names)) == 30


@pytest.mark.parametrize("ends", ["cleanly", "killed"])
def test_another_process_finds_every_byte(tmp_path: Path, ends: str) -> None:
    with _writer(tmp_path, "a", 50) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"50\n"
        if ends == "cleanly":
            writer.stdin.write(b"end\n")
            writer.stdin.close()
            assert writer.wait(30) == 0
        else:
            writer.kill()
            writer.wait(30)
    with opened(tmp_path) as store:
        assert len(get(store, chain("a", 50))) == 50
        assert store.stats().num_damaged_total == 0


def test_a_folder_has_one_user_at_a_time(tmp_path: Path) -> None:
    with _writer(tmp_path, "a", 3) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"3\n"
        with pytest.raises(BadSetting, match="another process uses this folder; give another --data-dir"):
            DiskStore(tmp_path, GEOMETRY, BUDGET)
        writer.kill()
        writer.wait(30)
        with opened(tmp_path) as store:
            assert store.find(None, chain("a", 3)) == 3


@contextmanager
def _writer(folder: Path, label: str, length: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.backend.disk_blocks", str(folder), label, str(length)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


# -- files that are not to be believed -------------------------------------------------------------


@pytest.mark.parametrize(
    ("geometry", "reason"),
    [
        (replace(GEOMETRY, identity=b"another"), "it is of another model, number format or cache key"),
        (replace(GEOMETRY, block_size=32), "its blocks are of 16 tokens and 1000 bytes"),
        (replace(GEOMETRY, slot_bytes=2000), "its blocks are of 16 tokens and 1000 bytes"),
    ],
)
def test_blocks_of_another_kind_are_left_alone(
    tmp_path: Path, geometry: HostGeometry, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    names = chain("a", 5)
    with opened(tmp_path) as store:
        put(store, names)
    with opened(tmp_path, geometry=geometry) as store:
        assert store.find(None, names) == 0
        assert store.stats().num_unusable_files == 1
        assert f"{segments(tmp_path)[0]} is not used: {reason}" in caplog.text
    with opened(tmp_path) as store:  # and the first model is served again
        assert len(get(store, names)) == 5


def test_another_version_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as store:
        put(store, chain("a", 5))
    monkeypatch.setattr(disk_format, "FORMAT_VERSION", 2)
    with opened(tmp_path) as store:
        assert store.find(None, chain("a", 5)) == 0
    assert "it is of format version 1, and this one reads 2" in caplog.text


def test_files_that_are_not_ours_are_never_touched(tmp_path: Path) -> None:
    strange = ("notes.txt", "segment-1.kv", "segment-0000000000000009.kv.bak")
    for name in strange:
        (tmp_path / name).write_bytes(b"x" * 3000)
    (tmp_path / "elsewhere").write_bytes(b"precious")
    (tmp_path / "segment-0000000000000005.kv").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "segment-0000000000000006.kv").mkdir()
    with opened(tmp_path, budget_bytes=blocks_budget(2)) as store:
        put(store, chain("a", 1))
        put(store, chain("b", 5))
        assert store.stats().num_unusable_files == 0
    assert all((tmp_path / name).read_bytes() == b"x" * 3000 for name in strange)
    assert (tmp_path / "elsewhere").read_bytes() == b"precious"
    assert (tmp_path / "segment-0000000000000005.kv").is_symlink()


def test_a_file_with_our_name_and_strange_bytes_goes_first_when_room_is_needed(tmp_path: Path) -> None:
    strange = tmp_path / "segment-0000000000000007.kv"
    strange.write_bytes(b"x" * RECORD_BYTES)
    with opened(tmp_path, budget_bytes=blocks_budget(3)) as store:
        put(store, chain("a", 1))
        assert strange.exists()
        assert put(store, chain("a", 3)) == 3
        assert not strange.exists()
        assert len(get(store, chain("a", 3))) == 3


def test_a_renamed_segment_is_not_believed(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, chain("a", 3))
    segments(tmp_path)[0].rename(tmp_path / "segment-0000000000000063.kv")
    with opened(tmp_path) as store:
        assert store.find(None, chain("a", 3)) == 0


def test_records_that_changed_places_are_not_believed(tmp_path: Path) -> None:
    names = chain("a", 3)
    with opened(tmp_path) as store:
        put(store, names)
    file = segments(tmp_path)[0]
    raw = file.read_bytes()
    first, second = HEADER_BYTES, HEADER_BYTES + RECORD_BYTES
    file.write_bytes(raw[:first] + raw[second : second + RECORD_BYTES] * 2 + raw[second + RECORD_BYTES :])
    with opened(tmp_path) as store:
        assert get(store, names) == []
        assert store.stats().num_damaged_total == 1


@pytest.mark.parametrize("num_bytes_left", [1, RECORD_HEADER_BYTES, RECORD_BYTES - 1])
def test_a_torn_tail_is_ignored_and_written_over(tmp_path: Path, num_bytes_left: int) -> None:
    names = chain("a", 5)
    with opened(tmp_path) as store:
        put(store, names)
    os.truncate(segments(tmp_path)[0], HEADER_BYTES + 3 * RECORD_BYTES + num_bytes_left)
    with opened(tmp_path) as store:
        assert store.stats().num_damaged_total == 1
        assert len(get(store, names)) == 3
        assert put(store, names) == 5
        assert len(get(store, names)) == 5
    with opened(tmp_path) as store:
        assert len(get(store, names)) == 5
        assert store.stats().num_damaged_total == 0


def test_a_damaged_block_is_forgotten_with_what_follows_it_and_can_be_written_again(tmp_path: Path) -> None:
    names = chain("a", 6)
    branch = chain("branch", 2)
    with opened(tmp_path) as store:
        put(store, names)
        put(store, branch, parent=names[3])
    _flip(segments(tmp_path)[0], HEADER_BYTES + 2 * RECORD_BYTES + RECORD_HEADER_BYTES + 500, 1)
    with opened(tmp_path) as store:
        assert store.find(None, names) == 6
        store.take_events()
        assert len(get(store, names)) == 2
        assert store.find(None, names) == 2
        assert store.find(names[3], branch) == 0
        (event,) = store.take_events()
        assert (event.kind, event.reason) == ("evicted", "dropped")
        assert set(BlockNames(event.names)) == {*names[2:], *branch}
        assert put(store, names) == 6
        assert len(get(store, names)) == 6
    with opened(tmp_path) as store:  # the damaged record is not found again
        assert len(get(store, names)) == 6
        assert len(get(store, branch)) == 2  # their parent is back, so they are too
        assert store.stats().num_damaged_total == 0


def _flip(file: Path, offset: int, mask: int) -> None:
    raw = bytearray(file.read_bytes())
    raw[offset] ^= mask
    file.write_bytes(raw)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The one segment of two conversations with a common beginning."""
    folder = tmp_path_factory.mktemp("written")
    with opened(folder) as store:
        put(store, chain("a", 4))
        put(store, chain("b", 2), parent=chain("a", 4)[1])
    return segments(folder)[0].read_bytes()


SEGMENT_BYTES = HEADER_BYTES + 6 * RECORD_BYTES
OFFSETS = st.one_of(
    st.integers(0, HEADER_BYTES - 1),
    st.builds(
        lambda record, offset: HEADER_BYTES + record * RECORD_BYTES + offset,
        st.integers(0, 5),
        st.integers(0, RECORD_HEADER_BYTES - 1),
    ),
    st.integers(0, SEGMENT_BYTES - 1),
    st.integers(SEGMENT_BYTES - 40, SEGMENT_BYTES - 1),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    flips=st.lists(st.tuples(OFFSETS, st.integers(1, 255)), min_size=1, max_size=4),
    length=st.one_of(st.just(SEGMENT_BYTES), st.integers(0, SEGMENT_BYTES)),
    tail=st.binary(max_size=RECORD_BYTES * 2),
)
def test_no_damage_ever_gives_a_wrong_byte(
    tmp_path_factory: pytest.TempPathFactory,
    written: bytes,
    flips: list[tuple[int, int]],
    length: int,
    tail: bytes,
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    raw = bytearray(written)
    for offset, mask in flips:
        raw[offset] ^= mask
    (folder / "segment-0000000000000001.kv").write_bytes(bytes(raw[:length]) + tail)
    names = chain("a", 4)
    branch = [*names[:2], *chain("b", 2)]
    for _ in range(2):  # what the first start did to the file is no harm to the next
        with opened(folder) as store:
            for conversation in (names, branch):
                get(store, conversation)  # fails on a wrong byte
            assert put(store, names) == 4
            assert len(get(store, names)) == 4


# -- the budget ------------------------------------------------------------------------------------


def test_the_conversation_unused_for_the_longest_goes_first(tmp_path: Path) -> None:
    budget = blocks_budget(6)
    with opened(tmp_path, budget_bytes=budget) as store:
        for label in ("a", "b", "c"):
            assert put(store, chain(label, 2)) == 2
        get(store, chain("a", 2))
        assert put(store, chain("d", 2)) == 2
        assert [store.find(None, chain(label, 2)) for label in "abcd"] == [2, 0, 2, 2]
        assert store.stats().num_bytes <= budget
        assert store.stats().num_evicted_total == 2


def test_what_a_conversation_begins_with_stays_as_long_as_its_end_is_used(tmp_path: Path) -> None:
    with opened(tmp_path, budget_bytes=blocks_budget(6)) as store:
        names = chain("a", 5)
        put(store, names[:2])
        put(store, chain("b", 2))
        put(store, names[2:4], parent=names[1])
        assert put(store, names[4:], parent=names[3]) == 1
        assert store.find(None, names) == 5
        assert store.find(None, chain("b", 2)) < 2


def test_a_conversation_larger_than_the_budget_keeps_its_beginning(tmp_path: Path) -> None:
    with opened(tmp_path, budget_bytes=blocks_budget(4)) as store:
        assert put(store, chain("a", 9)) == 4
        assert len(get(store, chain("a", 9))) == 4


def test_when_a_beginning_goes_so_does_what_follows_it(tmp_path: Path) -> None:
    with opened(tmp_path, budget_bytes=blocks_budget(4)) as store:
        put(store, chain("a", 4))
        put(store, chain("b", 1))
        assert store.find(None, chain("a", 4)) == 0
        put(store, chain("c", 3))  # the rest of `a`, named by nobody, went before anything of use
        assert store.find(None, chain("b", 1)) == 1
        assert store.find(None, chain("c", 3)) == 3


def test_a_smaller_budget_is_kept_from_the_start(tmp_path: Path) -> None:
    with opened(tmp_path, budget_bytes=blocks_budget(8)) as store:
        for label in ("a", "b", "c", "d"):
            put(store, chain(label, 2))
        get(store, chain("a", 2))
    with opened(tmp_path, budget_bytes=blocks_budget(4)) as store:
        assert store.stats().num_bytes <= blocks_budget(4)
        assert [store.find(None, chain(label, 2)) for label in "abcd"] == [2, 0, 0, 2]


def test_a_budget_below_one_block_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"--disk-cache-gb 1e-06: one block of this model takes"):
        DiskStore(tmp_path, GEOMETRY, 1000)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.integers(0, 5), st.integers(1, 6)),
            st.tuples(st.just("get"), st.integers(0, 5), st.integers(1, 6)),
            st.tuples(st.just("restart"), st.just(0), st.integers(5, 12)),
        ),
        max_size=30,
    )
)
def test_whatever_happens_the_budget_is_kept_and_the_events_tell_what_is_there(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]]
) -> None:
    folder = tmp_path_factory.mktemp("steps")
    budget = blocks_budget(10)
    store = DiskStore(folder, GEOMETRY, budget)
    told: set[BlockHash] = set()
    try:
        for step, label, number in steps:
            # conversations branch off a common beginning after 2 blocks
            names = [*chain("common", 2), *chain(str(label), number)]
            match step:
                case "put":
                    put(store, names)
                case "get":
                    found = store.find(None, names)
                    assert len(get(store, names)) == found
                case "restart":
                    store.close()
                    told.clear()
                    budget = blocks_budget(number)
                    store = DiskStore(folder, GEOMETRY, budget)
            assert store.stats().num_bytes <= budget
            assert sum(file.stat().st_size for file in segments(folder)) == store.stats().num_bytes
            for event in store.take_events():
                assert event.tier == "disk"
                if event.kind == "stored":
                    assert not event.parent or event.parent in told
                    told.update(BlockNames(event.names))
                else:
                    told.difference_update(BlockNames(event.names))
            assert len(told) == store.stats().num_blocks
            whole = [event.names for event in store.contents()]
            assert sorted(BlockNames(b"".join(whole))) == sorted(told)
            assert store.find(None, names) == sum(1 for name in names if name in told)
    finally:
        store.close()


# -- a disk that fails -----------------------------------------------------------------------------


def test_a_full_disk_stops_the_writing_once_and_loudly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    names = chain("a", 6)
    write = os.pwritev
    with opened(tmp_path) as store:
        put(store, names[:3])

        def half(descriptor: int, views: Sequence[memoryview], offset: int, /) -> int:
            if offset < HEADER_BYTES + 4 * RECORD_BYTES:
                return write(descriptor, views, offset)
            if len(views) > 1:
                return write(descriptor, [*views[:-1], views[-1][:100]], offset)
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "pwritev", half)
        assert put(store, names) == 4
        monkeypatch.undo()
        assert put(store, names) == 4  # not tried again before the next start
        assert store.stats().stopped == "No space left on device"
        assert len(get(store, names)) == 4
        errors = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert len(errors) == 1
        assert "takes no more blocks until the next start: No space left on device" in errors[0].getMessage()
    assert segments(tmp_path)[0].stat().st_size == HEADER_BYTES + 4 * RECORD_BYTES
    with opened(tmp_path) as store:
        assert put(store, names) == 6
        assert store.stats().num_damaged_total == 0


def test_a_limit_on_file_sizes_stops_the_writing_and_keeps_what_is_there(tmp_path: Path) -> None:
    names = chain("a", 6)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with opened(tmp_path) as store:
        resource.setrlimit(resource.RLIMIT_FSIZE, (HEADER_BYTES + 2 * RECORD_BYTES + 300, before[1]))
        try:
            assert put(store, names) == 2
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert store.stats().stopped == "File too large"
        assert len(get(store, names)) == 2


def test_a_file_cut_short_beneath_us_is_a_miss(tmp_path: Path) -> None:
    names = chain("a", 4)
    with opened(tmp_path) as store:
        put(store, names)
        os.truncate(segments(tmp_path)[0], HEADER_BYTES + RECORD_BYTES + 10)
        assert len(get(store, names)) == 1
        assert store.find(None, names) == 1


def test_a_folder_removed_beneath_us_harms_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "disk-cache"
    with opened(folder, budget_bytes=blocks_budget(4)) as store:
        put(store, chain("a", 4))
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
        assert put(store, chain("b", 2)) == 0
        assert store.stats().stopped == "No such file or directory"
        assert store.find(None, chain("b", 2)) == 0


def test_a_folder_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadSetting, match=r"disk cache .*file/disk-cache: Not a directory"):
        DiskStore(tmp_path / "file" / "disk-cache", GEOMETRY, BUDGET)


def test_slots_of_an_arena_are_written_and_filled_where_they_lie(tmp_path: Path) -> None:
    names = chain("a", 3)
    layout = ArenaLayout(num_slots=6, slot_bytes=GEOMETRY.slot_bytes)
    arena = HostArena(memory=memoryview(bytearray(layout.total_bytes)), layout=layout)
    slots = [SlotViews.of(arena, slot) for slot in range(6)]
    for name, slot in zip(names, slots[:3], strict=True):
        slot.checksum[:], slot.block[:] = slot_of(name)[:8], slot_of(name)[8:]
    with opened(tmp_path) as store:
        assert store.append(None, names, slots[:3]) == 3
        assert store.read_into(names, slots[3:]) == 3
    assert arena.memory[24:48] == arena.memory[:24]
    start, size = layout.slots_offset, 3 * layout.slot_bytes
    assert arena.memory[start : start + size] == arena.memory[start + size : start + 2 * size]
