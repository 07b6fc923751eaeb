"""A gateway on loopback over the real runtime, front and scheduler, with made-up tokens; one process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keepwarm.backend.in_process_rank import InProcessRank
from keepwarm.backend.native import CacheNaming, NativeBackend
from keepwarm.backend.scripted_words import ByteWords
from keepwarm.contract.runtime import BackendApp
from keepwarm.core.rank_messages import RankStats
from keepwarm.gateway.http_replica import HttpReplica
from tests.backend.ports import KEY, in_process_rank, scripted_settings
from tests.gateway.doors import LIMIT_S, Door, on_loopback
from tests.gateway.sockets import listening


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeStack:
    """The door, and what the rank behind it says of itself."""

    door: Door
    rank: InProcessRank

    @property
    def stats(self) -> RankStats:
        assert self.rank.stats is not None
        return self.rank.stats

    async def until(self, is_reached: Callable[[RankStats], bool]) -> RankStats:
        """The rank's figures once they are so."""
        async with asyncio.timeout(LIMIT_S):
            while self.rank.stats is None or not is_reached(self.rank.stats):
                await asyncio.sleep(0)
        return self.rank.stats

    async def until_idle(self) -> RankStats:
        """The same once nothing is left to do, copies included."""
        async with asyncio.timeout(LIMIT_S):
            while self.rank._engine.has_work:
                await asyncio.sleep(0)
        return self.stats


@contextlib.asynccontextmanager
async def whole_stack(
    folder: Path, *, rank: InProcessRank | None = None, **settings: Any
) -> AsyncIterator[WholeStack]:
    """Serves while the block runs. A token is a byte; a step reads 64. `settings`: the gateway's."""
    rank = rank or in_process_rank()
    backend = NativeBackend(
        scripted_settings(),
        rank=rank,
        load_words=ByteWords,
        naming=CacheNaming(key=KEY, model_identity=b"scripted"),
    )
    await backend.setup()
    app = BackendApp(backend)
    app.refusal = None
    socket_path = folder / "backend.sock"
    async with listening(app, socket_path):
        with contextlib.closing(HttpReplica(str(socket_path))) as replica:
            async with on_loopback(replica, **settings) as door:
                yield WholeStack(door=door, rank=rank)
    await backend.close()
