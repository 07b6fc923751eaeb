"""Ranks divide what they share, and there are never more than it is enough for."""

from __future__ import annotations

from typing import Any

import pytest

from keepwarm.core.errors import BadSetting
from keepwarm.engine.rank_share import refuse_more_ranks_than_devices, threads_of_a_rank
from keepwarm.engine.settings import EngineSettings


def threads(num_cores: int, **changes: Any) -> int:
    return threads_of_a_rank(EngineSettings(model_path="model", **changes), num_cores=num_cores)


def test_the_cores_are_divided() -> None:
    assert threads(8) == 8
    assert threads(8, num_ranks=2) == 4
    assert threads(7, num_ranks=2) == 3
    assert threads(2, num_ranks=2) == 1


def test_named_threads_are_divided_too() -> None:
    assert threads(8, num_ranks=2, num_threads=6) == 3
    assert threads(2, num_threads=6) == 6


def test_more_ranks_than_cores_are_refused() -> None:
    with pytest.raises(BadSetting) as caught:
        threads(2, num_ranks=3)
    assert str(caught.value) == (
        "--ranks 3: this process may use 2 cores, and on a CPU each rank needs one; lower --ranks to 2"
    )


def test_fewer_threads_than_ranks_are_refused() -> None:
    with pytest.raises(BadSetting, match=r"--num-threads 1 is less than --ranks 2"):
        threads(8, num_ranks=2, num_threads=1)


def test_more_ranks_than_devices_are_refused() -> None:
    refuse_more_ranks_than_devices(2, num_devices=2)
    with pytest.raises(BadSetting, match=r"--ranks 3: this machine has 2 devices.* lower --ranks to 2"):
        refuse_more_ranks_than_devices(3, num_devices=2)
