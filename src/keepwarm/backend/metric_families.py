"""Prometheus metrics out of numbers that somebody else counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

Samples = Iterable[tuple[Sequence[str], float]]
"""Values of the labels, and the number."""


def gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, help_text, value=value)


def gauges(name: str, help_text: str, labels: Sequence[str], samples: Samples) -> Metric:
    """One gauge for each combination of the labels' values."""
    return _filled(GaugeMetricFamily(name, help_text, labels=labels), samples)


def counters(name: str, help_text: str, labels: Sequence[str], samples: Samples) -> Metric:
    """Likewise. Its name gains `_total` in the text."""
    return _filled(CounterMetricFamily(name, help_text, labels=labels), samples)


def by_label(counts: Mapping[str, float]) -> Samples:
    """Of one label, in the order of its values."""
    return (((value,), count) for value, count in sorted(counts.items()))


def as_text(metrics: Iterable[Metric]) -> str:
    """Prometheus text."""
    registry = CollectorRegistry()
    registry.register(_Once(list(metrics)))
    return generate_latest(registry).decode()


def _filled(
    family: GaugeMetricFamily | CounterMetricFamily, samples: Samples
) -> GaugeMetricFamily | CounterMetricFamily:
    for values, number in samples:
        family.add_metric(values, number)
    return family


class _Once(Collector):
    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics
