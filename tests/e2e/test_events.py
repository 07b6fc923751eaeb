"""What a whole server tells of its caches: the stream of events agrees with the metrics and the answers."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import psutil

from tests.backend.events_reader import EventsReader
from tests.e2e.served import Served, eventually, serve

LIMIT_S = 30.0
OPTIONS = (
    *("--engine", "scripted", "--max-model-len", "2048", "--max-num-seqs", "2"),
    *("--device-cache-gb", "0.0085", "--host-cache-gb", "0.05", "--ranks", "2"),
)
"""A rank's device memory holds one context; a token is a byte."""


def ask(served: Served, text: str) -> str:
    """The header that says what was cached."""
    body = {"model": "default", "max_tokens": 4, "messages": [{"role": "user", "content": text}]}
    with served.client() as client:
        response = client.post("/v1/messages", json=body, headers={"x-session-id": text[:1]})
    assert response.status_code == 200
    return response.headers["x-keepwarm-cached-tokens"]


def what_is_there(served: Served) -> EventsReader:
    """All that the events begin with."""
    reader = EventsReader()
    transport = httpx.HTTPTransport(uds=backend_socket(served))
    with (
        httpx.Client(transport=transport, base_url="http://backend", timeout=LIMIT_S) as client,
        client.stream("GET", "/events") as response,
    ):
        for piece in response.iter_bytes():
            reader.feed(piece)
            if reader.is_live:
                return reader
    raise AssertionError(f"the events ended: {reader.end_reason}")


def backend_socket(served: Served) -> str:
    children = psutil.Process(served.process.pid).children(recursive=True)
    paths = {str(each.laddr) for child in children for each in child.net_connections("unix")}
    return next(path for path in paths if path.endswith("backend.sock"))


def numbers(served: Served, name: str) -> dict[str, float]:
    """A metric's samples by their labels."""
    with served.client() as client:
        text = client.get("/metrics").text
    found = re.findall(rf"^{name}{{(.*?)}} (\S+)$", text, re.MULTILINE)
    return {labels: float(number) for labels, number in found}


def agrees(served: Served) -> bool:
    """Whether each tier has as many names as blocks that hold something, and nothing is in use."""
    reader = what_is_there(served)
    l0, l1 = numbers(served, "keepwarm_l0_blocks"), numbers(served, "keepwarm_l1_blocks")
    told = [len(reader.names(rank, "l0")) for rank in (0, 1)] + [len(reader.names(None, "l1"))]
    counted = [l0[f'rank="{rank}",state="cached"'] for rank in (0, 1)] + [l1['state="cached"']]
    return told == counted and all(counted)


def test_events_metrics_and_answers_tell_the_same(tmp_path: Path) -> None:
    with serve(tmp_path, *OPTIONS) as served:
        assert ask(served, "a " * 900) == "l0=0, l1=0, disk=0"
        for first in "bcde":  # until it is in host memory alone
            ask(served, f"{first} " * 900)
        eventually(lambda: agrees(served))
        warm = ask(served, "a " * 900)
        assert re.fullmatch(r"l0=0, l1=1[78]\d\d, disk=0", warm), warm
        hits = {
            labels: number
            for labels, number in numbers(served, "keepwarm_hit_tokens_total").items()
            if number
        }
        copied = numbers(served, "keepwarm_copied_bytes_total")
        logged = f"cached_tokens_l1={warm.split(', ')[1].removeprefix('l1=')}"
        eventually(lambda: logged in served.log.read_text())
    assert [labels.split(",")[1] for labels in hits] == ['tier="l1"']
    assert all(copied[f'direction="demote",rank="{rank}"'] for rank in (0, 1))
