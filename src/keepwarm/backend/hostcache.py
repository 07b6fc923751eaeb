"""The process that owns a replica's host memory: puts budget, cache and server together.

The composition root of `keepwarm hostcache`. Its standard input belongs to whoever started it: one
line of settings, then nothing; end of file means that the starter is dead. It outlives front and
ranks, so that no death of theirs loses a warm session. It computes nothing and touches no block.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import uvloop

from keepwarm.backend.disk_budget import disk_budget
from keepwarm.backend.disk_tier import DiskPolicy
from keepwarm.backend.host_budget import BESIDE_A_CPU_ENGINE, BESIDE_A_DEVICE, HostBudget, host_budget
from keepwarm.backend.host_cache import HostCache
from keepwarm.backend.host_disk import HostDisk
from keepwarm.backend.host_records import HostRecords
from keepwarm.backend.host_server import HostServer
from keepwarm.backend.machine_memory import Machine, has_nvidia_device
from keepwarm.backend.parent import stdin_belongs_to_a_parent, stdin_closed
from keepwarm.contract.serve import listen_on
from keepwarm.core.errors import BadSetting, SetupError

logger = logging.getLogger(__name__)

_SETUP_FAILED_STATUS = 2


class HostCacheSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the process is told at start. None means "decide at start and print it"."""

    socket_path: str
    """The Unix socket it listens on; absolute."""
    host_cache_gb: float | None = None
    """GB (10^9 bytes) of host memory, lowered to what the machine can spare; None: a quarter of that."""
    pinned: bool | None = None
    """The memory will be registered with a device; None: where there is an NVIDIA device."""
    records_mb: float = 64.0
    """MB (10^6 bytes) of records kept for the front."""
    disk_cache_gb: float = 0.0
    """GB (10^9 bytes) in `disk_folder`, lowered to what is free there; 0: no third tier."""
    disk_folder: str = ""
    """Absolute, made when missing; used by one service at a time."""
    disk_idle_s: float = 60.0
    """What lies in host memory for so long is written to disk."""
    disk_write_limit_s: float = 30.0
    """At the end, what is in host memory alone is written to disk for so long at most."""


class HostCacheReady(msgspec.Struct, frozen=True, kw_only=True):
    """The one line on standard output, once it listens."""

    socket_path: str
    budget_bytes: int
    budget: str
    """The same as a sentence."""


def decode_host_cache_settings(raw: bytes) -> HostCacheSettings:
    """Settings from JSON. Raises `BadSetting` naming the key and the value."""
    try:
        return msgspec.json.decode(raw, type=HostCacheSettings)
    except msgspec.DecodeError as error:
        raise BadSetting(f"hostcache settings: {error}") from error


def run_hostcache(settings: HostCacheSettings | None = None) -> int:
    """Serve until SIGTERM, SIGINT or the end of standard input; the exit status.

    None: the settings are the first line of standard input.

    0: ended when asked. 2: could not be started, and the last line on standard error, after
    "error: ", is the sentence that says why. Anything else is a crash.
    """
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s hostcache: %(message)s", stream=sys.stderr
    )
    try:
        told = settings or decode_host_cache_settings(sys.stdin.buffer.readline())
        budget = _budget(told)
        disk = _disk(told)
        logger.log(logging.WARNING if budget.is_lowered else logging.INFO, "%s", budget.sentence)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(told, budget, disk))
    except SetupError as error:
        sys.stderr.write(f"error: {error}\n")
        return _SETUP_FAILED_STATUS
    return 0


def _budget(settings: HostCacheSettings) -> HostBudget:
    will_pin = has_nvidia_device() if settings.pinned is None else settings.pinned
    return host_budget(
        settings.host_cache_gb,
        Machine().limits(will_pin=will_pin),
        spared_share=BESIDE_A_DEVICE if will_pin else BESIDE_A_CPU_ENGINE,
    )


def _disk(settings: HostCacheSettings) -> HostDisk | None:
    """Raises `BadSetting` where the folder lies on no disk of this machine, or nothing fits."""
    if not settings.disk_cache_gb:
        return None
    folder = Path(settings.disk_folder)
    budget = disk_budget(folder, settings.disk_cache_gb)
    if budget.lowered is not None:
        logger.warning("%s", budget.lowered)
    policy = DiskPolicy(idle_s=settings.disk_idle_s)
    return HostDisk(folder=folder, budget_bytes=budget.num_bytes, policy=policy)


@contextlib.contextmanager
def _closed_at_the_end(cache: HostCache, disk_write_limit_s: float) -> Iterator[None]:
    try:
        yield
    finally:
        cache.close(disk_write_limit_s=disk_write_limit_s)


async def _serve(settings: HostCacheSettings, budget: HostBudget, disk: HostDisk | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    cache = HostCache(
        budget_bytes=budget.num_bytes, records=HostRecords(int(settings.records_mb * 1e6)), disk=disk
    )
    for key, value in disk.load_records() if disk is not None else ():
        cache.records.put(key, value)
    with (
        _closed_at_the_end(cache, settings.disk_write_limit_s),
        contextlib.closing(listen_on(settings.socket_path)) as listener,
    ):
        serving = asyncio.create_task(HostServer(cache).serve(listener), name="host server")
        ends = {serving, asyncio.create_task(stop.wait(), name="signals")}
        if stdin_belongs_to_a_parent():
            ends.add(asyncio.create_task(stdin_closed(), name="parent watch"))
        try:
            _say_ready(settings, budget)
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                await serving  # only a mistake of ours ends it
        finally:
            for task in ends:
                task.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(settings.socket_path)


def _say_ready(settings: HostCacheSettings, budget: HostBudget) -> None:
    ready = HostCacheReady(
        socket_path=settings.socket_path, budget_bytes=budget.num_bytes, budget=budget.sentence
    )
    with contextlib.suppress(BrokenPipeError):  # nobody listens: its standard input says whether it lives
        sys.stdout.buffer.write(msgspec.json.encode(ready) + b"\n")
        sys.stdout.buffer.flush()
