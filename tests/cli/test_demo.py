"""`keepwarm demo` from outside, and its tables."""

from __future__ import annotations

import io
import json
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from keepwarm.cli.demo_tables import LinePerTurn, print_verdict
from keepwarm.measure.demo import DemoReport, DemoTurn
from tests.cli.command import run

TURN = DemoTurn(
    agent="harbour",
    turn=2,
    prompt_tokens=812,
    cached_tokens=736,
    expected_cached_tokens=720,
    missed=False,
    new_tokens=76,
    turn_class="warm",
    output_tokens=24,
    ttft_s=0.25,
    tokens_per_s=11.46,
    identical=True,
)
MISSED = msgspec.structs.replace(TURN, turn=3, cached_tokens=0, missed=True, turn_class="cold", ttft_s=2.0)


def report(*turns: DemoTurn, problems: tuple[str, ...] = ()) -> DemoReport:
    return DemoReport(
        tool="demo",
        version="0.1.0",
        passed=not problems,
        problems=problems,
        settings={},
        turns=turns,
        cold_ttft_p50_s=2.0,
        warm_ttft_p50_s=0.25,
    )


@pytest.fixture
def screen() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def console(screen: io.StringIO) -> Console:
    return Console(file=screen, width=100, highlight=False)


def test_each_turn_is_one_line_under_its_heading(console: Console, screen: io.StringIO) -> None:
    LinePerTurn(console).turn_ended(TURN)

    heading, line = screen.getvalue().split("\n")[1:3]
    assert heading.split() == ["agent", "turn", "prompt", "cached", "new", "TTFT", "s", "tokens/s", "class"]
    assert line.split() == ["harbour", "2", "812", "736", "76", "0.250", "11.5", "warm"]


def test_a_miss_is_said_at_once(console: Console, screen: io.StringIO) -> None:
    LinePerTurn(console).turn_ended(MISSED)

    assert screen.getvalue().splitlines()[-1].endswith("cold  MISSED")


def test_the_verdict_shows_both_medians_and_how_far_they_are_apart(
    console: Console, screen: io.StringIO
) -> None:
    print_verdict(console, report(TURN, MISSED))

    shown = screen.getvalue()
    assert "a warm turn starts 8.0 times sooner" in shown
    assert "PASS  2 of 2 answers equal their cold runs, 1 missed" in shown


def test_a_failed_verdict_lists_its_problems(console: Console, screen: io.StringIO) -> None:
    print_verdict(console, report(MISSED, problems=("harbour, turn 3 missed",)))

    assert "- harbour, turn 3 missed" in screen.getvalue()
    assert "FAIL" in screen.getvalue()


def test_a_whole_demo_with_made_up_tokens_runs_compares_and_reports() -> None:
    # Made-up tokens do not survive text: an answer sent back is other tokens, and is rightly missed.
    done = run("demo", "--engine", "scripted", "--agents", "2", "--turns", "2", "--json", "-")

    decoded = json.loads(done.stdout)
    assert done.returncode == (0 if decoded["pass"] else 1)
    assert [(turn["agent"], turn["turn"]) for turn in decoded["turns"]] == [
        ("harbour", 1),
        ("orchard", 1),
        ("harbour", 2),
        ("orchard", 2),
    ]
    assert all(turn["identical"] for turn in decoded["turns"])
    assert all(turn["cached_tokens"] > 2000 for turn in decoded["turns"] if turn["turn"] == 2)
    assert "a warm turn starts" in done.stderr


def test_a_demo_on_a_model_that_is_not_there_is_wrong_use(tmp_path: Path) -> None:
    refused = run("demo", "--model", str(tmp_path / "nothing"))

    assert refused.returncode == 2
    assert "no such file or folder" in refused.stderr


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(900)  # seconds alone, minutes beside other work
def test_the_embedded_model_passes(tmp_path: Path) -> None:
    target = tmp_path / "demo.json"

    done = run("demo", "--max-tokens", "8", "--json", str(target), limit_s=840)

    assert done.returncode == 0, done.stdout + done.stderr
    decoded = json.loads(target.read_text())
    assert decoded["pass"]
    assert decoded["warm_ttft_p50_s"] < decoded["cold_ttft_p50_s"]
    assert sum(not turn["missed"] for turn in decoded["turns"] if turn["turn"] > 1) == 9
