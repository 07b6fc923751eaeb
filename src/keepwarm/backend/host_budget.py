"""How much host memory L1 may take: what was asked for, lowered to what the machine can spare."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from keepwarm.backend.machine_memory import Limit, gigabytes
from keepwarm.core.errors import BadSetting

SETTING: Final = "--host-cache-gb"

DEFAULT_SHARE: Final = 0.25
"""Of what the machine can spare, where no budget is named."""
BESIDE_A_DEVICE: Final = 0.9
"""Of free memory that can be spared where the engine computes on a device."""
BESIDE_A_CPU_ENGINE: Final = 0.5
"""The same where weights and L0 (`engine.memory.CPU_SHARE`) lie in host memory too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostBudget:
    num_bytes: int
    """0: no host memory."""
    sentence: str
    """What became of the setting, for the log."""
    is_lowered: bool
    """To less than what was asked for."""


def host_budget(asked_gb: float | None, limits: Sequence[Limit], *, spared_share: float) -> HostBudget:
    """The budget in bytes. None: a quarter of what can be spared; 0: none.

    `spared_share` of what others take from too can be spared, of other limits the whole.
    Raises `BadSetting` for what is no amount of memory.
    """
    if asked_gb is not None and not (math.isfinite(asked_gb) and asked_gb >= 0):
        raise BadSetting(f"{SETTING} {asked_gb}: must be a number of GB (10^9 bytes), at least 0")
    if asked_gb == 0:
        return HostBudget(
            num_bytes=0, sentence=f"{SETTING} 0: no host memory for the cache", is_lowered=False
        )
    spared, reason = _spared(limits, spared_share)
    if asked_gb is None:
        num_bytes = int(spared * DEFAULT_SHARE)
        sentence = (
            f"{SETTING}: {gigabytes(num_bytes)}, a quarter of the {gigabytes(spared)} that can be spared, "
            f"because {reason}"
        )
        return HostBudget(num_bytes=num_bytes, sentence=sentence, is_lowered=False)
    asked = int(asked_gb * 1e9)
    if asked <= spared:
        sentence = f"{SETTING} {asked_gb:g}: {gigabytes(asked)} for the cache in host memory"
        return HostBudget(num_bytes=asked, sentence=sentence, is_lowered=False)
    sentence = f"{SETTING} {asked_gb:g}: lowered to {gigabytes(spared)}, because {reason}"
    return HostBudget(num_bytes=spared, sentence=sentence, is_lowered=True)


def _spared(limits: Sequence[Limit], share: float) -> tuple[int, str]:
    """The least of all limits, and what says so."""
    if not limits:
        raise BadSetting(f"{SETTING}: nothing says how much memory is free; name 0 to do without")
    by_bytes = [
        (int(limit.num_bytes * share), f"{limit.reason}, of which {share:.0%} can be spared")
        if limit.is_shared
        else (limit.num_bytes, limit.reason)
        for limit in limits
    ]
    return min(by_bytes)
