"""A rank as host memory sees it, in a process of its own: writes and reads, and says when it read
something wrong. `python -m tests.backend.host_worker SOCKET RANK SEED NUM_TURNS`."""

from __future__ import annotations

import contextlib
import random
import sys

from keepwarm.backend.host_client import HostClient, attach
from tests.backend.hostcaches import GEOMETRY, content_of, named, slot_of


def work(client: HostClient, drawn: random.Random) -> int:
    """One turn: what is there is read, what is missing is written. Blocks that were read."""
    names = named("".join(drawn.choices("abc", k=drawn.randint(1, 12))))
    lease = client.find(None, names)
    num_read = 0
    if lease is not None:
        for slot, name in zip(lease.slots.tolist(), names, strict=False):
            if bytes(slot_of(client, slot)) != content_of(name):
                raise SystemExit(f"slot {slot} does not hold {name!r}")
        num_read = len(lease.slots)
        client.release(lease)
    missing = client.reserve(None, names)
    if missing is not None:
        for slot, name in zip(missing.slots.tolist(), names[missing.num_present :], strict=True):
            slot_of(client, slot)[:] = content_of(name)
        client.written(missing)
        client.release(missing)
    return num_read


def main(socket_path: str, rank: str, seed: str, num_turns: str) -> None:
    drawn = random.Random(int(seed))
    with contextlib.closing(attach(socket_path, rank=int(rank), geometry=GEOMETRY)) as client:
        sys.stdout.write("attached\n")
        sys.stdout.flush()
        num_read = sum(work(client, drawn) for _ in range(int(num_turns)))
    sys.stdout.write(f"{num_read}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
