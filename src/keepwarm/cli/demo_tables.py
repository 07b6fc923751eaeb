"""The demo for people: a line a turn while it runs, then medians and the verdict."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from keepwarm.measure.demo import DemoReport, DemoTurn, Watcher

_ROW = "{:<12} {:>4} {:>8} {:>8} {:>6} {:>9} {:>9}  {}"


class LinePerTurn(Watcher):
    """Prints each turn as it ends, and a dot for each cold run."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._num_turns = 0
        self._num_cold_runs = 0
        header = _ROW.format("agent", "turn", "prompt", "cached", "new", "TTFT s", "tokens/s", "class")
        console.print(f"\n[bold]{header}[/bold]")

    def turn_ended(self, turn: DemoTurn) -> None:
        self._num_turns += 1
        rate = "-" if turn.tokens_per_s is None else f"{turn.tokens_per_s:.1f}"
        row = _ROW.format(
            turn.agent,
            turn.turn,
            turn.prompt_tokens,
            turn.cached_tokens,
            turn.new_tokens,
            f"{turn.ttft_s:.3f}",
            rate,
            turn.turn_class + ("  MISSED" if turn.missed else ""),
        )
        self._console.print(row, style="yellow" if turn.missed else None, markup=False)

    def cold_run_ended(self, turn: DemoTurn) -> None:
        if self._num_cold_runs == 0:
            self._console.print("\nthe same requests without the cache: ", end="", style="dim")
        self._num_cold_runs += 1
        self._console.print("." if turn.identical else "x", end="", style="dim" if turn.identical else "red")
        if self._num_cold_runs == self._num_turns:
            self._console.print()


def print_verdict(console: Console, report: DemoReport) -> None:
    """Cold against warm, what went wrong, and one word."""
    table = Table("", "turns", "median TTFT s", box=None, pad_edge=False)
    for name, median_s in (("cold", report.cold_ttft_p50_s), ("warm", report.warm_ttft_p50_s)):
        num_turns = sum(turn.turn_class == name for turn in report.turns)
        table.add_row(name, str(num_turns), "-" if median_s is None else f"{median_s:.3f}")
    console.print()
    console.print(table)
    if report.cold_ttft_p50_s and report.warm_ttft_p50_s:
        console.print(
            f"a warm turn starts {report.cold_ttft_p50_s / report.warm_ttft_p50_s:.1f} times sooner"
        )
    for problem in report.problems:
        console.print(f"- {problem}", style="red", markup=False)
    identical = sum(turn.identical is True for turn in report.turns)
    missed = sum(turn.missed for turn in report.turns)
    verdict = "[green]PASS[/green]" if report.passed else "[red]FAIL[/red]"
    console.print(
        f"{verdict}  {identical} of {len(report.turns)} answers equal their cold runs, {missed} missed"
    )
