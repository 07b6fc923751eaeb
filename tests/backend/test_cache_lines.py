"""The page on events documents every line and field, and every metric that is told."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from keepwarm.backend import rank_metrics
from keepwarm.backend.cache_lines import Line, encode_line, line_of
from keepwarm.core.rank_messages import CacheEvent

PAGE = (Path(__file__).parents[2] / "docs" / "events.md").read_text()


@pytest.mark.parametrize("kind", get_args(Line))
def test_every_line_and_field_is_documented(kind: type[msgspec.Struct]) -> None:
    assert f"| `{kind.__struct_config__.tag}` |" in PAGE
    (row,) = [row for row in PAGE.splitlines() if row.startswith(f"| `{kind.__struct_config__.tag}` |")]
    for field in kind.__struct_fields__:
        assert f"`{field}`" in row, field


def test_every_metric_that_is_documented_is_told() -> None:
    source = Path(rank_metrics.__file__).read_text()
    for name in re.findall(r"`(keepwarm_\w+)`", PAGE):
        stem = name.removesuffix("_total")
        told = stem.replace("stored", "{kind}").replace("evicted", "{kind}")
        assert f'"{stem}"' in source or f'"{told}"' in source, name


def test_a_line_is_one_line_of_json() -> None:
    event = CacheEvent(kind="evicted", tier="l1", names=bytes(range(32)), reason="room")
    raw = encode_line(line_of(event, None))
    assert raw.count(b"\n") == 1
    assert msgspec.json.decode(raw) == {
        "event": "evicted",
        "tier": "l1",
        "rank": None,
        "names": [bytes(range(16)).hex(), bytes(range(16, 32)).hex()],
        "reason": "room",
    }
