"""Ranks for tests: one in this process, one in its own, both with the scripted engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from keepwarm.backend.in_process_rank import InProcessRank
from keepwarm.backend.rank_builder import build_rank
from keepwarm.backend.rank_group import RankGroup
from keepwarm.backend.rank_port import RankEvent, RankPort
from keepwarm.backend.rank_process import RankLimits, RankProcess
from keepwarm.backend.settings import BackendSettings
from keepwarm.core.ids import RequestId
from keepwarm.core.rank_messages import Admitted, Ended, Submit, Tokens
from keepwarm.core.restarts import RestartLimits
from keepwarm.core.sampling import GREEDY

KEY = bytes(range(32))
PATIENCE_S = 20.0
"""No test waits for anything longer than this."""
LONG_TOKENS = 50_000
"""Output of a turn that is still under way whenever a test looks: seconds of scripted steps."""

QUICK = RankLimits(
    start_limit_s=PATIENCE_S,
    silence_limit_s=PATIENCE_S,
    stop_limit_s=5.0,
    restarts=RestartLimits(first_delay_s=0.01, max_delay_s=0.02),
)


def scripted_settings(**changes: object) -> BackendSettings:
    values: dict[str, object] = {
        "model_path": "/no/model",
        "model_name": "scripted",
        "socket_path": "/unused",
        "data_dir": "/unused",
        "engine": "scripted",
        "max_model_len": 65_536,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 64,
        "device_cache_gb": 1.0,
    }
    return BackendSettings(**(values | changes))  # type: ignore[arg-type]


def in_process_rank(rank: int = 0) -> InProcessRank:
    engine, ready = build_rank(scripted_settings(), hash_key=KEY)
    return InProcessRank(engine, ready, rank=rank)


def rank_process(rank: int = 0, *, limits: RankLimits = QUICK, **changes: object) -> RankProcess:
    return RankProcess(scripted_settings(**changes), hash_key=KEY, rank=rank, limits=limits)


def in_process_group() -> RankGroup:
    return RankGroup([in_process_rank(0), in_process_rank(1)])


def process_group(num_ranks: int = 2, *, limits: RankLimits = QUICK) -> RankGroup:
    return RankGroup([rank_process(rank, limits=limits, ranks=num_ranks) for rank in range(num_ranks)])


class Ear:
    """Hears one turn, and whether its rank kept to the order of events."""

    def __init__(self) -> None:
        self.events: list[RankEvent] = []
        self._changed = asyncio.Event()

    def __call__(self, event: RankEvent) -> None:
        self.events.append(event)
        self._changed.set()

    async def until(self, is_reached: Callable[[Ear], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not is_reached(self):
                self._changed.clear()
                await self._changed.wait()

    async def end(self) -> Ended:
        await self.until(lambda ear: bool(ear.ends))
        return self.ends[0]

    @property
    def ends(self) -> list[Ended]:
        return [event for event in self.events if isinstance(event, Ended)]

    @property
    def tokens(self) -> list[int]:
        return [token for event in self.events if isinstance(event, Tokens) for token in event.tokens]

    @property
    def cached_tokens(self) -> list[int]:
        return [event.cached_tokens for event in self.events if isinstance(event, Admitted)]


def turn(name: str, *, num_prompt_tokens: int = 8, max_output_tokens: int = 4) -> Submit:
    """Its prompt has no full block's name, so it neither hits nor is hit."""
    tokens = bytes(4 * num_prompt_tokens)
    return Submit(
        request_id=RequestId(name),
        tokens=tokens,
        block_hashes=b"",
        root=bytes(16),
        max_output_tokens=max_output_tokens,
        stop_tokens=(),
        sampling=GREEDY,
        use_cache=False,
    )


MakePort = Callable[[], RankPort]
