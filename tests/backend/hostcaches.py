"""A real `keepwarm hostcache`, and ranks that are processes of their own."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from keepwarm.backend.host_client import HostClient, attach
from keepwarm.backend.hostcache import HostCacheReady, HostCacheSettings
from keepwarm.core.host_tier import HostGeometry, HostLease, HostTier
from keepwarm.core.ids import BlockHash
from tests.cli.command import environment

END_LIMIT_S = 30.0
SLOT_BYTES = 8192
GEOMETRY = HostGeometry(identity=b"a model", block_size=16, slot_bytes=SLOT_BYTES)
COMMAND = (sys.executable, "-m", "keepwarm", "hostcache")


def named(path: str) -> list[BlockHash]:
    """The names of a path's prefixes."""
    return [BlockHash(path[:end].encode().ljust(16, b".")) for end in range(1, len(path) + 1)]


def content_of(name: BlockHash) -> bytes:
    """What a slot of that name holds, byte for byte."""
    return (name * (SLOT_BYTES // len(name) + 1))[:SLOT_BYTES]


def slot_of(client: HostClient, slot: int) -> memoryview:
    """One slot's bytes."""
    start = client.arena.layout.slots_offset + slot * SLOT_BYTES
    return client.arena.memory[start : start + SLOT_BYTES]


def store(client: HostClient, path: str) -> None:
    """As a rank demotes: reserve, copy, publish, release."""
    names = named(path)
    lease = client.reserve(None, names)
    assert lease is not None
    for slot, name in zip(lease.slots.tolist(), names[lease.num_present :], strict=True):
        slot_of(client, slot)[:] = content_of(name)
    client.written(lease)
    client.release(lease)


def read(client: HostClient, path: str) -> list[bytes]:
    """As a rank promotes: what the leading names of a path hold."""
    lease = client.find(None, named(path))
    if lease is None:
        return []
    blocks = [bytes(slot_of(client, slot)) for slot in lease.slots.tolist()]
    client.release(lease)
    return blocks


def found(tier: HostTier, path: str) -> HostLease:
    lease = tier.find(None, named(path))
    assert lease is not None
    return lease


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningHostCache:
    """One that listens."""

    process: subprocess.Popen[bytes]
    socket_path: str
    ready: HostCacheReady
    log: Path

    def attach(self, rank: int = 0, **more: Any) -> HostClient:
        """As a rank of this process, to be closed."""
        return attach(self.socket_path, rank=rank, **({"geometry": GEOMETRY} | more))


@contextlib.contextmanager
def running_hostcache(
    folder: Path, *, host_cache_gb: float = 0.001, **more: Any
) -> Iterator[RunningHostCache]:
    """Its socket and its log in `folder`; ended at the end as a dead parent would end it."""
    socket_path, log = str(folder / "host.sock"), folder / "hostcache.log"
    settings = HostCacheSettings(socket_path=socket_path, host_cache_gb=host_cache_gb, pinned=False, **more)
    with start_hostcache(msgspec.json.encode(settings), log) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, log.read_text()
        ready = msgspec.json.decode(line, type=HostCacheReady)
        yield RunningHostCache(process=process, socket_path=socket_path, ready=ready, log=log)


@contextlib.contextmanager
def start_hostcache(
    settings: bytes, log: Path, command: Sequence[str] = COMMAND
) -> Iterator[subprocess.Popen[bytes]]:
    """One that may not come to listen."""
    with log.open("ab") as file:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, env=environment()
        )
    try:
        assert process.stdin is not None
        process.stdin.write(settings + b"\n")
        process.stdin.flush()
        yield process
    finally:
        _end(process)


@contextlib.contextmanager
def rank_that_hangs(socket_path: str) -> Iterator[subprocess.Popen[bytes]]:
    """Another process, which holds a lease on "abc" and has half written "abcde"; killed at the end."""
    process = subprocess.Popen(
        (sys.executable, "-m", "tests.backend.hostcaches", socket_path),
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"holds\n"
        yield process
    finally:
        process.kill()
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.wait(END_LIMIT_S)
    process.stdout.close()


def _hold_until_killed(socket_path: str) -> None:
    client = attach(socket_path, rank=7, geometry=GEOMETRY)
    found(client, "abc")
    writing = client.reserve(named("abc")[-1], named("abcde")[3:])
    assert writing is not None
    slot = slot_of(client, int(writing.slots[0]))
    slot[: SLOT_BYTES // 2] = content_of(named("abcd")[-1])[: SLOT_BYTES // 2]
    sys.stdout.write("holds\n")
    sys.stdout.flush()
    sys.stdin.readline()
    client._connection.close()  # and the process lives on, as its copies might
    sys.stdout.write("hung up\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    _hold_until_killed(sys.argv[1])
