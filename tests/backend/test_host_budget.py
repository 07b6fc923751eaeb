"""Host memory that is asked for, against what a machine can spare."""

from __future__ import annotations

import math
import resource
from pathlib import Path

import pytest

from keepwarm.backend.host_budget import HostBudget, host_budget
from keepwarm.backend.machine_memory import Limit, Machine
from keepwarm.core.errors import BadSetting

GB = 1_000_000_000
FREE = Limit(num_bytes=100 * GB, reason="100.0 GB of the machine's memory are free", is_shared=True)


def budget(asked_gb: float | None, *more: Limit) -> HostBudget:
    return host_budget(asked_gb, [FREE, *more], spared_share=0.5)


def test_a_budget_that_can_be_spared_is_taken_as_it_is() -> None:
    given = budget(12.5)
    assert (given.num_bytes, given.is_lowered) == (12_500_000_000, False)
    assert given.sentence == "--host-cache-gb 12.5: 12.5 GB for the cache in host memory"


def test_a_budget_beyond_the_machine_is_lowered_and_says_from_what_to_what_and_why() -> None:
    given = budget(500.0)
    assert (given.num_bytes, given.is_lowered) == (50 * GB, True)
    assert given.sentence == (
        "--host-cache-gb 500: lowered to 50.0 GB, because 100.0 GB of the machine's memory are free, of "
        "which 50% can be spared"
    )


def test_no_budget_is_a_quarter_of_what_can_be_spared() -> None:
    given = budget(None)
    assert (given.num_bytes, given.is_lowered) == (12_500_000_000, False)
    assert "12.5 GB, a quarter of the 50.0 GB that can be spared" in given.sentence


def test_the_least_limit_counts_and_is_named() -> None:
    group = Limit(num_bytes=20 * GB, reason="memory.max leaves 20.0 GB", is_shared=True)
    locked = Limit(num_bytes=8_000_000, reason="locked memory is limited to 0.008 GB (ulimit -l)")
    assert "lowered to 10.0 GB, because memory.max leaves 20.0 GB" in budget(50.0, group).sentence
    assert budget(50.0, group, locked).sentence == (
        "--host-cache-gb 50: lowered to 0.008 GB, because locked memory is limited to 0.008 GB (ulimit -l)"
    )


def test_none_is_none() -> None:
    assert budget(0.0).num_bytes == 0


@pytest.mark.parametrize("wrong", [-1.0, math.nan, math.inf, -math.inf])
def test_what_is_no_amount_of_memory_is_refused(wrong: float) -> None:
    with pytest.raises(BadSetting, match=f"--host-cache-gb {wrong}: must be a number of GB"):
        budget(wrong)


def test_a_machine_that_tells_nothing_gets_no_guess() -> None:
    with pytest.raises(BadSetting, match="nothing says how much memory is free"):
        host_budget(1.0, [], spared_share=0.5)


def files(folder: Path, contents: dict[str, str]) -> Machine:
    for name, text in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Machine(proc=folder / "proc", cgroup=folder / "cgroup")


MEMINFO = {"proc/meminfo": "MemTotal: 200 kB\nMemAvailable:   1000000 kB\n"}


def shared(machine: Machine) -> list[int]:
    return [limit.num_bytes for limit in machine.limits(will_pin=False) if limit.is_shared]


def test_all_groups_that_a_process_lies_in_count(tmp_path: Path) -> None:
    machine = files(
        tmp_path,
        MEMINFO
        | {
            "proc/self/cgroup": "0::/slice/service\n",
            "cgroup/slice/memory.max": "5000\n",
            "cgroup/slice/memory.current": "3000\n",
            "cgroup/slice/memory.stat": "anon 1\ninactive_file 700\nactive_file 9\n",
            "cgroup/slice/service/memory.max": "max\n",
            "cgroup/slice/service/memory.current": "10\n",
        },
    )
    assert shared(machine) == [1_024_000_000, 2700]
    reasons = [limit.reason for limit in machine.limits(will_pin=False)]
    assert any("slice/memory.max" in reason for reason in reasons)


def test_a_container_s_own_group_is_the_root_it_sees(tmp_path: Path) -> None:
    machine = files(
        tmp_path,
        MEMINFO
        | {
            "proc/self/cgroup": "0::/docker/abc\n",
            "cgroup/memory.max": "5000\n",
            "cgroup/memory.current": "6000\n",
        },
    )
    assert shared(machine) == [1_024_000_000, 0]


def test_groups_of_the_first_version_count_too(tmp_path: Path) -> None:
    machine = files(
        tmp_path,
        MEMINFO
        | {
            "proc/self/cgroup": "9:cpu,cpuacct:/a\n4:memory:/a\n0::/\n",
            "cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "cgroup/memory/memory.usage_in_bytes": "1\n",
            "cgroup/memory/a/memory.limit_in_bytes": "5000\n",
            "cgroup/memory/a/memory.usage_in_bytes": "1000\n",
            "cgroup/memory/a/memory.stat": "inactive_file 1\ntotal_inactive_file 500\n",
        },
    )
    assert shared(machine) == [1_024_000_000, 4500]


def test_a_machine_without_any_of_the_files_has_no_such_limit(tmp_path: Path) -> None:
    assert shared(files(tmp_path, {})) == []


def test_locked_memory_counts_only_for_who_pins_and_may_not_lock_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def getrlimit(which: int) -> tuple[int, int]:
        return (65536, 65536) if which == resource.RLIMIT_MEMLOCK else (resource.RLIM_INFINITY,) * 2

    monkeypatch.setattr(resource, "getrlimit", getrlimit)
    user = files(tmp_path / "user", MEMINFO | {"proc/self/status": "Name: x\nCapEff:\t0000000000000000\n"})
    root = files(tmp_path / "root", MEMINFO | {"proc/self/status": "Name: x\nCapEff:\t000001ffffffffff\n"})
    assert [limit.num_bytes for limit in user.limits(will_pin=True)] == [1_024_000_000, 65536]
    assert user.limits(will_pin=True)[-1].reason == "locked memory is limited to 6.6e-05 GB (ulimit -l)"
    assert len(user.limits(will_pin=False)) == 1
    assert len(root.limits(will_pin=True)) == 1


def test_this_machine_has_memory() -> None:
    assert all(limit.num_bytes > 0 for limit in Machine().limits(will_pin=False))
