"""What one of several ranks gets of a machine that they share. Arithmetic, and what is refused."""

from __future__ import annotations

from keepwarm.core.errors import BadSetting
from keepwarm.engine.settings import EngineSettings


def threads_of_a_rank(settings: EngineSettings, *, num_cores: int) -> int:
    """An equal part of the threads. Raises `BadSetting` where that is less than one."""
    num_ranks, num_threads = settings.num_ranks, settings.num_threads
    if num_ranks > num_cores:
        raise BadSetting(
            f"--ranks {num_ranks}: this process may use {num_cores} cores, and on a CPU each rank needs one; "
            f"lower --ranks to {num_cores}"
        )
    if num_threads is not None and num_threads < num_ranks:
        raise BadSetting(
            f"--num-threads {num_threads} is less than --ranks {num_ranks}: each rank needs one thread"
        )
    return (num_threads or num_cores) // num_ranks


def refuse_more_ranks_than_devices(num_ranks: int, *, num_devices: int) -> None:
    """Each rank has a device of its own, where devices compute. Raises `BadSetting`."""
    if num_ranks > num_devices:
        raise BadSetting(
            f"--ranks {num_ranks}: this machine has {num_devices} devices, and each rank needs one of its "
            f"own; lower --ranks to {num_devices}"
        )
