"""The processes that a server keeps alive: the owner of host memory, and the backend.

Owns what each is told at every start, and that the first outlives the second. When to start and to
end them is `serving`'s business.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from keepwarm.backend.settings import BackendSettings
from keepwarm.chat.request import ReplicaDescription
from keepwarm.cli.serve_settings import ServeSettings
from keepwarm.core.restarts import RestartLimits
from keepwarm.worker.child import BackendChild
from keepwarm.worker.host_cache import HostCacheChild
from keepwarm.worker.supervised import Supervised

_HOST_CACHE_STOP_LIMIT_S = 120.0
"""It may write to disk what it holds."""
_DISK_FOLDER = "disk-cache"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCacheProcess:
    """The owner of host memory. It outlives the backend, whatever becomes of that one."""

    socket_path: str
    process: Supervised[dict[str, Any]]

    async def socket_now(self) -> str | None:
        """Waits while it is being started again; None: it is left stopped."""
        trouble = await self.process.settled()
        return self.socket_path if trouble is None else None


def host_cache_process(
    settings: ServeSettings, *, folder: Path, data_dir: Path, on_log_line: Callable[[str], None]
) -> HostCacheProcess | None:
    """Its socket lies in `folder`. None: nothing is to be kept in host memory."""
    if settings.host_cache_gb == 0.0:
        return None
    socket_path = str(folder / "host.sock")
    told = {
        "socket_path": socket_path,
        "host_cache_gb": settings.host_cache_gb,
        "disk_cache_gb": settings.disk_cache_gb,
        "disk_folder": str(data_dir / _DISK_FOLDER),
    }

    async def new_life() -> HostCacheChild:
        return HostCacheChild(told, on_log_line=on_log_line)

    process = Supervised(
        "host cache",
        new_life,
        means="what it held is lost, and running engines go on without it until they are started again",
        limits=RestartLimits(max_losses=settings.max_crashes),
        stop_limit_s=_HOST_CACHE_STOP_LIMIT_S,
    )
    return HostCacheProcess(socket_path=socket_path, process=process)


@contextlib.asynccontextmanager
async def kept(host_cache: HostCacheProcess | None) -> AsyncIterator[None]:
    """It is there while the block runs. Raises `SetupError`."""
    if host_cache is None:
        yield
        return
    await host_cache.process.start()
    try:
        yield
    finally:
        await host_cache.process.stop()


def backend_process(
    settings: ServeSettings,
    told: BackendSettings,
    host_cache: HostCacheProcess | None,
    on_log_line: Callable[[str], None],
) -> Supervised[dict[str, Any]]:
    """Each of its lives is told where host memory is, if it is there at that time."""

    async def new_life() -> BackendChild:
        host_socket = None if host_cache is None else await host_cache.socket_now()
        now = msgspec.structs.replace(told, host_cache_socket=host_socket)
        return BackendChild(msgspec.to_builtins(now), on_log_line=on_log_line)

    return Supervised(
        "backend",
        new_life,
        limits=RestartLimits(max_losses=settings.max_crashes),
        start_limit_s=settings.start_timeout_s,
    )


@contextlib.asynccontextmanager
async def served_by(backend: Supervised[dict[str, Any]]) -> AsyncIterator[ReplicaDescription]:
    """What it serves, from its first start to its orderly end. Raises `SetupError`."""
    description = await backend.start()
    try:
        yield msgspec.convert(description, ReplicaDescription)
    finally:
        await backend.stop()
