from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keepwarm.backend.disk_format import SlotViews
from keepwarm.backend.disk_store import DiskStore
from keepwarm.backend.disk_tier import LOAD_LIMIT_S, DiskPolicy, DiskTier
from keepwarm.backend.disk_worker import DiskWorker
from keepwarm.cache.host_index import HostIndex, Owner
from keepwarm.core.hashing import BlockNames
from keepwarm.core.host_tier import ArenaLayout, HostArena, HostTierLost
from keepwarm.core.ids import BlockHash
from tests.backend.disk_blocks import GEOMETRY, chain, slot_of

RANK, DISK = Owner(0), Owner(1)
IDLE_S = 60.0
FAST = DiskPolicy(idle_s=IDLE_S, write_bytes_per_s=math.inf)


class Service:
    """One L1 over one folder, a rank that uses it, and a clock that stands still."""

    def __init__(
        self, folder: Path, *, num_slots: int = 100, budget_bytes: int = 10**7, policy: DiskPolicy = FAST
    ) -> None:
        layout = ArenaLayout(num_slots=num_slots, slot_bytes=GEOMETRY.slot_bytes)
        self.arena = HostArena(memory=memoryview(bytearray(layout.total_bytes)), layout=layout)
        self.index = HostIndex(num_slots)
        self.store = DiskStore(folder, GEOMETRY, budget_bytes)
        self.now_s = 0.0
        self._woken = Event()
        self.tier = DiskTier(
            index=self.index,
            arena=self.arena,
            store=self.store,
            owner=DISK,
            worker=DiskWorker(self._woken.set),
            policy=policy,
        )

    def demote(self, names: Sequence[BlockHash], after: BlockHash | None = None) -> None:
        """As a rank does: reserve, write the bytes, publish."""
        lease = self.index.reserve(RANK, after, names)
        assert lease is not None
        for name, slot in zip(names[lease.num_present :], lease.slots.tolist(), strict=True):
            views = SlotViews.of(self.arena, slot)
            views.checksum[:], views.block[:] = slot_of(name)[:8], slot_of(name)[8:]
        self.index.written(RANK, lease.lease_id)
        self.index.release(RANK, lease.lease_id)
        self.note()

    def note(self) -> None:
        self.tier.note(self.index.take_events(), self.now_s)

    def promote(self, names: Sequence[BlockHash]) -> tuple[int, int]:
        """As a rank does once nothing is brought up any more: how many are there, how many from disk.
        Every one holds its bytes."""
        self.settle()
        while self.tier.prefetch(None, names, self.now_s):
            self._wait()
        self.note()
        lease = self.index.find(RANK, None, names)
        if lease is None:
            return 0, 0
        for name, slot in zip(names[: lease.num_present], lease.slots.tolist(), strict=True):
            views = SlotViews.of(self.arena, slot)
            assert bytes(views.checksum) + bytes(views.block) == slot_of(name)
        self.index.release(RANK, lease.lease_id)
        return lease.num_present, lease.num_from_disk

    def _wait(self) -> None:
        assert self._woken.wait(30)
        self._woken.clear()
        self.tier.tick(self.now_s)

    def settle(self) -> float | None:
        """Go on until nothing is due now: seconds until something is."""
        due_in_s = self.tier.tick(self.now_s)
        while self.index.occupancy().leased + self.index.occupancy().writing:
            self._wait()
            due_in_s = self.tier.tick(self.now_s)
        self.note()
        return due_in_s

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        self.settle()

    def check(self) -> None:
        self.index.check()


@contextmanager
def service(
    folder: Path,
    *,
    num_slots: int = 100,
    budget_bytes: int = 10**7,
    policy: DiskPolicy = FAST,
    write_limit_s: float = 0.0,
) -> Iterator[Service]:
    running = Service(folder, num_slots=num_slots, budget_bytes=budget_bytes, policy=policy)
    try:
        yield running
        running.settle()
        running.check()
        assert running.index.occupancy().leased == 0
    finally:
        running.tier.close(write_limit_s)


def test_a_conversation_is_written_once_it_is_idle(tmp_path: Path) -> None:
    names = chain("a", 10)
    with service(tmp_path) as running:
        running.demote(names)
        assert running.settle() == IDLE_S
        assert running.store.find(None, names) == 0
        running.pass_time(IDLE_S)
        assert running.store.find(None, names) == 10
        assert running.settle() is None


def test_an_end_without_time_to_write_looks_at_no_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_for: list[BlockHash | None] = []
    running = Service(tmp_path)
    running.demote(chain("a", 90))
    monkeypatch.setattr(running.store, "find", lambda after, names: looked_for.append(after))
    running.tier.close(0.0)
    assert looked_for == []


def test_a_full_disk_is_tried_once_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[BlockHash | None] = []

    def full(parent: BlockHash | None, *_: object) -> int:
        tried.append(parent)
        return 0

    running = Service(tmp_path)
    running.demote(chain("a", 20))
    running.demote(chain("b", 20))
    monkeypatch.setattr(running.store, "append", full)
    running.tier.close(60.0)
    assert len(tried) == 1


def test_a_restart_finds_what_was_written(tmp_path: Path) -> None:
    names = chain("a", 10)
    with service(tmp_path) as running:
        running.demote(names)
        running.pass_time(IDLE_S)
    with service(tmp_path) as running:
        assert running.promote(names) == (10, 10)
        assert running.promote(names) == (10, 0)  # it is in host memory by now
        running.pass_time(2 * IDLE_S)
        assert running.store.stats().num_written_total == 0  # and need not be written again


def test_what_follows_something_in_host_memory_is_brought_up_behind_it(tmp_path: Path) -> None:
    names = chain("a", 10)
    with service(tmp_path) as running:
        running.demote(names)
        running.pass_time(IDLE_S)
    with service(tmp_path) as running:
        running.demote(names[:4])
        assert running.promote(names[:4]) == (4, 0)
        assert running.tier.prefetch(names[3], names[4:], running.now_s)
        running.settle()
        assert running.promote(names) == (10, 6)


def test_a_disk_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = chain("a", 3)
    with service(tmp_path) as running:
        running.demote(names)
        running.pass_time(IDLE_S)
    with service(tmp_path) as running:
        goes_on = Event()
        read_into = running.store.read_into

        def hang(names: Sequence[BlockHash], slots: Sequence[SlotViews]) -> int:
            assert goes_on.wait(30)
            return read_into(names, slots)

        monkeypatch.setattr(running.store, "read_into", hang)
        assert running.tier.prefetch(None, names, 0.0)
        assert running.tier.prefetch(None, names, LOAD_LIMIT_S - 1)
        assert not running.tier.prefetch(None, names, LOAD_LIMIT_S)
        goes_on.set()
        assert running.promote(names) == (3, 3)


def test_what_is_not_on_disk_is_not_waited_for(tmp_path: Path) -> None:
    with service(tmp_path) as running:
        assert not running.tier.prefetch(None, chain("a", 3), running.now_s)
        assert not running.tier.prefetch(None, [], running.now_s)


def test_one_load_serves_all_who_ask(tmp_path: Path) -> None:
    names = chain("a", 10)
    with service(tmp_path) as running:
        running.demote(names)
        running.pass_time(IDLE_S)
    with service(tmp_path) as running:
        assert running.tier.prefetch(None, names, running.now_s)
        assert running.tier.prefetch(None, names, running.now_s)
        assert running.tier.prefetch(names[4], names[5:], running.now_s)
        assert running.promote(names) == (10, 10)
        assert running.store.stats().num_read_total == 10


def test_a_clean_end_writes_all_of_host_memory(tmp_path: Path) -> None:
    with service(tmp_path, write_limit_s=60) as running:
        running.demote(chain("a", 10))
        running.demote(chain("b", 5), after=chain("a", 10)[3])
    with service(tmp_path) as running:
        assert running.promote(chain("a", 10)) == (10, 10)
        assert running.promote([*chain("a", 4), *chain("b", 5)]) == (9, 5)


def test_an_end_without_time_writes_nothing_more(tmp_path: Path) -> None:
    with service(tmp_path, write_limit_s=0) as running:
        running.demote(chain("a", 10))
    with service(tmp_path) as running:
        assert running.promote(chain("a", 10)) == (0, 0)


def test_where_not_all_has_room_the_newest_conversations_outlive_the_end(tmp_path: Path) -> None:
    budget = 6 * (GEOMETRY.slot_bytes + 200)
    with service(tmp_path, budget_bytes=budget, write_limit_s=60) as running:
        for label in ("a", "b", "c", "d"):
            running.demote(chain(label, 3))
    with service(tmp_path, budget_bytes=budget) as running:
        assert running.promote(chain("d", 3)) == (3, 3)
        assert running.promote(chain("a", 3)) == (0, 0)


def test_a_nearly_full_host_memory_is_written_at_once(tmp_path: Path) -> None:
    with service(tmp_path, num_slots=20) as running:
        running.demote(chain("a", 17))
        assert running.settle() == IDLE_S
        running.demote(chain("b", 2))
        assert running.settle() is None
        assert running.store.find(None, chain("a", 17)) == 17
        assert running.store.find(None, chain("b", 2)) == 2


def test_writing_keeps_to_its_rate(tmp_path: Path) -> None:
    policy = DiskPolicy(idle_s=IDLE_S, write_bytes_per_s=GEOMETRY.slot_bytes)
    with service(tmp_path, policy=policy) as running:
        running.demote(chain("a", 5))
        running.pass_time(IDLE_S)
        running.demote(chain("b", 5))
        running.now_s += IDLE_S
        assert running.settle() is None
        running.demote(chain("c", 1))
        running.now_s += 1
        running.demote(chain("d", 1))
        assert running.settle() == IDLE_S - 1
    with service(tmp_path, policy=DiskPolicy(idle_s=0.0, write_bytes_per_s=GEOMETRY.slot_bytes)) as running:
        running.demote(chain("e", 5))
        assert running.settle() is None
        running.demote(chain("f", 5))
        assert running.settle() == 5.0  # five blocks of one second each were written just now


def test_damage_on_disk_is_a_shorter_prefix(tmp_path: Path) -> None:
    names = chain("a", 10)
    with service(tmp_path) as running:
        running.demote(names)
        running.pass_time(IDLE_S)
    (file,) = tmp_path.glob("segment-*.kv")
    raw = bytearray(file.read_bytes())
    raw[len(raw) * 6 // 10] ^= 1  # in the sixth block
    file.write_bytes(raw)
    with service(tmp_path) as running:
        assert running.promote(names) == (5, 5)
        assert running.promote(names) == (5, 0)


def test_a_load_that_finds_no_room_ends_with_what_had_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keepwarm.backend.disk_tier.PIECE_BYTES", 2 * GEOMETRY.slot_bytes)
    names = chain("a", 10)
    with service(tmp_path) as running:
        running.demote(names)
        running.pass_time(IDLE_S)
    with service(tmp_path, num_slots=5) as running:
        assert running.promote(names) == (4, 4)


def test_pieces_of_a_long_conversation_are_written_and_read_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keepwarm.backend.disk_tier.PIECE_BYTES", 3 * GEOMETRY.slot_bytes)
    names = chain("a", 50)
    with service(tmp_path) as running:
        running.demote(names)
        running.pass_time(IDLE_S)
        assert running.store.find(None, names) == 50
    with service(tmp_path) as running:
        assert running.promote(names) == (50, 50)


def test_a_conversation_larger_than_the_disk_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keepwarm.backend.disk_tier.PIECE_BYTES", 3 * GEOMETRY.slot_bytes)
    with service(tmp_path, budget_bytes=6 * (GEOMETRY.slot_bytes + 200)) as running:
        running.demote(chain("a", 50))
        running.pass_time(IDLE_S)
        assert 0 < running.store.find(None, chain("a", 50)) < 50
        assert running.settle() is None


def test_a_block_that_a_rank_found_wrong_is_found_nowhere_again(tmp_path: Path) -> None:
    names = chain("a", 6)
    with service(tmp_path) as running:
        running.demote(names)
        running.pass_time(IDLE_S)
        running.index.drop(names[3:4])
        running.tier.drop(names[3:4])
        running.note()
        assert running.promote(names) == (3, 0)
    with service(tmp_path) as running:
        assert running.promote(names) == (3, 3)


def test_when_host_memory_fails_what_was_written_from_it_goes_too(tmp_path: Path) -> None:
    with service(tmp_path) as running:
        running.demote(chain("old", 3))
        running.pass_time(IDLE_S)
    with service(tmp_path, write_limit_s=60) as running:
        running.demote(chain("new", 3))
        running.pass_time(IDLE_S)
        running.index.switch_off("a checksum did not match")
        running.tier.switch_off()
        running.note()
        assert not running.tier.prefetch(None, chain("old", 3), running.now_s)
        with pytest.raises(HostTierLost):
            running.index.find(RANK, None, chain("new", 3))
    with service(tmp_path) as running:
        assert running.promote(chain("new", 3)) == (0, 0)


def test_memory_that_fails_during_a_load_harms_nobody(tmp_path: Path) -> None:
    with service(tmp_path) as running:
        running.demote(chain("a", 6))
        running.pass_time(IDLE_S)
    with service(tmp_path) as running:
        assert running.tier.prefetch(None, chain("a", 6), running.now_s)
        running.index.switch_off("a checksum did not match")
        running.tier.switch_off()
        running.settle()
        assert running.index.occupancy().empty == 100


def test_an_end_during_a_load_gives_all_slots_back(tmp_path: Path) -> None:
    with service(tmp_path) as running:
        running.demote(chain("a", 6))
        running.pass_time(IDLE_S)
    running = Service(tmp_path)
    assert running.tier.prefetch(None, chain("a", 6), running.now_s)
    running.tier.close()
    running.check()
    occupancy = running.index.occupancy()
    assert (occupancy.leased, occupancy.writing) == (0, 0)


STEPS = st.one_of(
    st.tuples(st.sampled_from(["demote", "promote", "ask", "drop"]), st.integers(0, 4), st.integers(1, 6)),
    st.tuples(st.just("time"), st.just(0), st.integers(1, 100)),
    st.tuples(st.sampled_from(["clean restart", "restart"]), st.just(0), st.integers(0, 1)),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, max_size=25))
def test_whatever_happens_every_byte_is_the_right_one_and_every_slot_is_accounted_for(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]]
) -> None:
    folder = tmp_path_factory.mktemp("steps")
    budget = 12 * (GEOMETRY.slot_bytes + 200)

    def start() -> Service:
        return Service(folder, num_slots=12, budget_bytes=budget)

    running = start()
    on_disk: set[BlockHash] = set()
    try:
        for step, label, number in steps:
            names = [*chain("common", 2), *chain(str(label), number)]
            match step:
                case "demote":
                    running.settle()
                    running.demote(names)
                case "promote":
                    running.promote(names)
                case "ask":
                    running.tier.prefetch(None, names, running.now_s)
                case "drop":
                    running.index.drop(names[1:2])
                    running.tier.drop(names[1:2])
                    running.note()
                case "time":
                    running.pass_time(number)
                case _:
                    running.tier.close(60.0 if step == "clean restart" else 0.0)
                    running.check()
                    running = start()
                    on_disk.clear()
            running.settle()
            running.check()
            for event in running.store.take_events():
                if event.kind == "stored":
                    on_disk.update(BlockNames(event.names))
                else:
                    on_disk.difference_update(BlockNames(event.names))
            assert len(on_disk) == running.store.stats().num_blocks
            assert running.store.stats().num_bytes <= budget
    finally:
        running.tier.close()
        running.check()
