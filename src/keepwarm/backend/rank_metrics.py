"""A replica's own numbers as Prometheus text. Built when asked for; counts nothing itself.

A rank's counters start at 0 again when it is restarted, as Prometheus expects of a counter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from keepwarm.backend.rank_port import RankPort
from keepwarm.core.rank_messages import RankStats


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontCounts:
    """What the front counts itself."""

    num_open: int
    outcomes: Mapping[str, int]
    """Requests that ended, by stop reason, error code or "aborted"."""
    malformed: Mapping[str, int]
    """Stretches of markup that could not be read, by tool format."""
    memory_bytes: Mapping[str, int]
    """Host memory held for conversations, by what it holds."""


def metrics_text(rank: RankPort, counts: FrontCounts) -> str:
    """All of a replica's numbers."""
    registry = CollectorRegistry()
    registry.register(_Once([*_front_metrics(rank, counts), *_rank_metrics(rank.ranks[0].stats)]))
    return generate_latest(registry).decode()


class _Once(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = list(metrics)

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _front_metrics(rank: RankPort, counts: FrontCounts) -> Iterator[Metric]:
    yield _gauge("keepwarm_backend_ready", "1: a request would be served now", rank.unready_reason() is None)
    yield _gauge("keepwarm_backend_requests_open", "Requests between receipt and end", counts.num_open)
    num_restarts = sum(view.num_restarts for view in rank.ranks)
    yield _counter("keepwarm_rank_restarts", "Starts of the rank after it was lost", num_restarts)
    yield _counters(
        "keepwarm_backend_requests", "Requests that ended, by outcome", "outcome", counts.outcomes
    )
    yield _counters(
        "keepwarm_malformed_markup",
        "Stretches of tool or reasoning markup in answers that could not be read, by tool format",
        "format",
        counts.malformed,
    )
    memory = GaugeMetricFamily(
        "keepwarm_front_memory_bytes",
        "Host memory held for conversations, by what it holds",
        labels=["holds"],
    )
    for holds, num_bytes in counts.memory_bytes.items():
        memory.add_metric([holds], num_bytes)
    yield memory


def _rank_metrics(stats: RankStats | None) -> Iterator[Metric]:
    if stats is None:
        return
    blocks = GaugeMetricFamily("keepwarm_l0_blocks", "Blocks of device memory, by state", labels=["state"])
    blocks.add_metric(["held"], stats.blocks_held)
    blocks.add_metric(["cached"], stats.blocks_cached)
    blocks.add_metric(["empty"], stats.blocks_empty)
    yield blocks
    yield _gauge("keepwarm_l0_blocks_capacity", "Blocks of device memory in all", stats.blocks_total)
    yield _gauge("keepwarm_requests_waiting", "Turns that wait for memory or a slot", stats.waiting)
    yield _gauge("keepwarm_requests_running", "Turns that hold memory", stats.running)
    yield _counter("keepwarm_prompt_tokens", "Tokens of all prompts", stats.prompt_tokens_total)
    yield _counter(
        "keepwarm_cached_tokens", "Prompt tokens that were not read again", stats.cached_tokens_total
    )
    yield _counter("keepwarm_computed_tokens", "Tokens whose KV was computed", stats.computed_tokens_total)
    yield _counter("keepwarm_output_tokens", "Tokens sampled and kept", stats.output_tokens_total)
    yield _counter(
        "keepwarm_preemptions", "Turns that gave their memory up for another", stats.preemptions_total
    )
    yield _counter(
        "keepwarm_l0_evicted_blocks", "Cached blocks whose room was needed", stats.evicted_blocks_total
    )
    yield _counter(
        "keepwarm_constrained_turns",
        "Turns whose answer a grammar held to a form",
        stats.constrained_turns_total,
    )
    yield _counter("keepwarm_steps", "Steps of the engine", stats.steps_total)


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, help_text, value=value)


def _counter(name: str, help_text: str, value: float) -> Metric:
    """Its name gains `_total` in the text."""
    return CounterMetricFamily(name, help_text, value=value)


def _counters(name: str, help_text: str, label: str, counts: Mapping[str, int]) -> Metric:
    """One counter for each value of the label."""
    family = CounterMetricFamily(name, help_text, labels=[label])
    for value, count in sorted(counts.items()):
        family.add_metric([value], count)
    return family
