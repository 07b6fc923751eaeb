"""Metrics and log lines of the door: each request is settled exactly once, when it ends."""

from __future__ import annotations

import logging

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from keepwarm.gateway.record import RequestRecord

_LOG = logging.getLogger("keepwarm.gateway.requests")

_MAX_UNSERVED_NAMES = 100
_MAX_NAME_CHARACTERS = 64
_QUIET_ROUTES = frozenset({"/healthz", "/readyz", "/metrics"})
_SECONDS = (0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)


class Accounts:
    """One gateway's own metrics."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._unserved_names: set[str] = set()
        self._requests = Counter(
            "keepwarm_gateway_requests",
            "Requests that ended; the model is the served one, whatever name was asked for",
            ["route", "model", "outcome"],
            registry=self._registry,
        )
        self._first_token_seconds = Histogram(
            "keepwarm_gateway_first_token_seconds",
            "From the request's arrival to its first token",
            ["route"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._seconds = Histogram(
            "keepwarm_gateway_request_seconds",
            "From the request's arrival to its end",
            ["route"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._tokens = Counter(
            "keepwarm_gateway_tokens",
            "Tokens of answered requests: uncached and cached ones of prompts, output ones",
            ["model", "kind"],
            registry=self._registry,
        )
        self._unserved = Counter(
            "keepwarm_gateway_unserved_fields",
            "Body fields, tools and blocks that were ignored",
            ["dialect", "field"],
            registry=self._registry,
        )
        self._normalised = Counter(
            "keepwarm_gateway_normalised_lines",
            "Lines that mean nothing and change with each request, taken off conversations",
            ["kind"],
            registry=self._registry,
        )
        self._normalised.labels("attribution")
        self.open_requests = Gauge(
            "keepwarm_gateway_open_requests", "Requests that have not ended", registry=self._registry
        )

    def settle(self, record: RequestRecord, now: float) -> None:
        """The one log line and the counts of a request that ended."""
        self._requests.labels(record.route, record.model or "", record.outcome).inc()
        self._seconds.labels(record.route).observe(now - record.received_at)
        if record.first_token_at is not None:
            self._first_token_seconds.labels(record.route).observe(record.first_token_at - record.received_at)
        self._count_tokens(record)
        fields = record.fields(now)
        level = logging.DEBUG if record.route in _QUIET_ROUTES else logging.INFO
        _LOG.log(level, "request %s", _logfmt(fields), extra={"fields": fields})

    def count_unserved(self, dialect: str, names: tuple[str, ...]) -> None:
        """Count names that clients made up, without letting them make up endless series."""
        for name in names:
            self._unserved.labels(dialect, self._bounded(name)).inc()

    def count_normalised(self, kinds: tuple[str, ...]) -> None:
        """Count what a dialect took off a conversation. The kinds are its own words, few and fixed."""
        for kind in kinds:
            self._normalised.labels(kind).inc()

    def text(self) -> bytes:
        """Prometheus text."""
        return generate_latest(self._registry)

    def _count_tokens(self, record: RequestRecord) -> None:
        """A request that broke off counts what was read of its prompt, not its unknown output."""
        if record.prompt_tokens is None or record.cached is None:
            return
        model, num_cached = record.model or "", record.cached.total
        self._tokens.labels(model, "uncached").inc(record.prompt_tokens - num_cached)
        self._tokens.labels(model, "cached").inc(num_cached)
        self._tokens.labels(model, "output").inc(record.output_tokens or 0)

    def _bounded(self, name: str) -> str:
        name = name[:_MAX_NAME_CHARACTERS]
        if name not in self._unserved_names:
            if len(self._unserved_names) >= _MAX_UNSERVED_NAMES:
                return "other"
            self._unserved_names.add(name)
        return name


def _logfmt(fields: dict[str, str | int | float | bool | None]) -> str:
    return " ".join(f"{name}={_logged(value)}" for name, value in fields.items() if value is not None)


def _logged(value: str | int | float | bool | None) -> str:
    text = str(value)
    plain = text and text.isprintable() and not any(character in ' "=\\' for character in text)
    return text if plain else ascii(text)
