"""The report format, as docs/reports.md lays it down."""

from __future__ import annotations

import json

from keepwarm.measure.demo import DemoReport, DemoTurn
from keepwarm.measure.report import encode_report, median

TURN = DemoTurn(
    agent="harbour",
    turn=2,
    prompt_tokens=800,
    cached_tokens=736,
    expected_cached_tokens=720,
    missed=False,
    new_tokens=64,
    turn_class="warm",
    output_tokens=24,
    ttft_s=0.25,
    tokens_per_s=11.5,
    identical=True,
)


def test_keywords_of_python_are_plain_names_in_json() -> None:
    report = DemoReport(
        tool="demo",
        version="0.1.0",
        passed=True,
        settings={"agents": 3},
        turns=(TURN,),
        cold_ttft_p50_s=2.0,
        warm_ttft_p50_s=0.25,
    )

    decoded = json.loads(encode_report(report))

    assert decoded["pass"] is True
    assert decoded["turns"][0]["class"] == "warm"
    assert {"tool", "version", "settings", "problems", "cold_ttft_p50_s", "warm_ttft_p50_s"} < decoded.keys()


def test_the_median_of_nothing_is_none() -> None:
    assert median([]) is None
    assert median([3.0, 1.0, 2.0]) == 2.0
