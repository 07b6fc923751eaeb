"""A replica's own numbers as Prometheus text. Built when asked for; counts nothing itself.

Labels: `rank`, from 0; `tier`, l0 (device memory), l1 (host memory) or disk. What a tier that all
ranks share tells of itself has the rank "". A rank's counters start at 0 again when it is restarted,
as Prometheus expects of a counter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from prometheus_client.core import Metric

from keepwarm.backend.cache_journal import Change
from keepwarm.backend.host_observer import DiskView, HostView
from keepwarm.backend.metric_families import Samples, as_text, by_label, counters, gauge, gauges
from keepwarm.backend.rank_port import RankState, RankView
from keepwarm.core.cached_tokens import CachedTokens
from keepwarm.core.rank_messages import RankStats

_Number = Callable[[RankStats], float]
_Ranks = Sequence[tuple[str, RankStats]]
"""Those that have said something, by number."""

_GAUGES: Sequence[tuple[str, str, _Number]] = (
    ("keepwarm_l0_blocks_capacity", "Blocks of device memory in all", lambda told: told.blocks_total),
    ("keepwarm_requests_waiting", "Turns that wait for memory or a slot", lambda told: told.waiting),
    ("keepwarm_requests_running", "Turns that hold memory", lambda told: told.running),
    ("keepwarm_copies_in_flight", "Copies between tiers that run now", lambda told: told.copies_in_flight),
)
_COUNTERS: Sequence[tuple[str, str, _Number]] = (
    ("keepwarm_prompt_tokens", "Tokens of all prompts", lambda told: told.prompt_tokens_total),
    (
        "keepwarm_cached_tokens",
        "Prompt tokens that were not read again",
        lambda told: told.cached_tokens_total,
    ),
    (
        "keepwarm_missed_tokens",
        "Prompt tokens that no tier held",
        lambda told: told.prompt_tokens_total - told.cached_tokens_total,
    ),
    ("keepwarm_computed_tokens", "Tokens whose KV was computed", lambda told: told.computed_tokens_total),
    ("keepwarm_output_tokens", "Tokens sampled and kept", lambda told: told.output_tokens_total),
    (
        "keepwarm_preemptions",
        "Turns that gave their memory up for another",
        lambda told: told.preemptions_total,
    ),
    (
        "keepwarm_l0_evicted_blocks",
        "Cached blocks whose room was needed",
        lambda told: told.evicted_blocks_total,
    ),
    (
        "keepwarm_constrained_turns",
        "Turns whose answer a grammar held to a form",
        lambda told: told.constrained_turns_total,
    ),
    ("keepwarm_steps", "Steps of the engine", lambda told: told.steps_total),
    (
        "keepwarm_skipped_promotions",
        "Turns for which reading again was predicted to be cheaper than copying up",
        lambda told: told.skipped_promotions_total,
    ),
    (
        "keepwarm_replayed_tokens",
        "Tokens computed again though known, since layers with a window kept none near by",
        lambda told: told.replayed_tokens_total,
    ),
)


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


def metrics_text(
    views: Sequence[RankView],
    counts: FrontCounts,
    *,
    is_ready: bool,
    changes: Mapping[Change, int] | None = None,
    host: HostView | None = None,
) -> str:
    """All of a replica's numbers."""
    stats = [(str(view.rank), view.stats) for view in views if view.stats is not None]
    return as_text(
        [
            gauge("keepwarm_backend_ready", "1: a request would be served now", is_ready),
            *_front_metrics(counts),
            *_life_metrics(views),
            *_rank_metrics(stats),
            *_copy_metrics(stats),
            *_change_metrics(changes or {}),
            *_host_metrics(host),
            *_disk_metrics(None if host is None else host.disk),
            *_occupancy_metrics(stats, host),
        ]
    )


def _front_metrics(counts: FrontCounts) -> Iterator[Metric]:
    yield gauge("keepwarm_backend_requests_open", "Requests between receipt and end", counts.num_open)
    yield counters(
        "keepwarm_backend_requests",
        "Requests that ended, by outcome",
        ["outcome"],
        by_label(counts.outcomes),
    )
    yield counters(
        "keepwarm_malformed_markup",
        "Stretches of tool or reasoning markup in answers that could not be read, by tool format",
        ["format"],
        by_label(counts.malformed),
    )
    yield gauges(
        "keepwarm_front_memory_bytes",
        "Host memory held for conversations, by what it holds",
        ["holds"],
        by_label(counts.memory_bytes),
    )


def _life_metrics(views: Sequence[RankView]) -> Iterator[Metric]:
    yield counters(
        "keepwarm_rank_restarts",
        "Starts of the rank after it was lost",
        ["rank"],
        (((str(view.rank),), view.num_restarts) for view in views),
    )
    yield gauges(
        "keepwarm_rank_state",
        "1: the rank is in this state",
        ["rank", "state"],
        (((str(view.rank), state), view.state == state) for view in views for state in get_args(RankState)),
    )


def _rank_metrics(ranks: _Ranks) -> Iterator[Metric]:
    for name, help_text, number in _GAUGES:
        yield gauges(name, help_text, ["rank"], _by_rank(ranks, number))
    for name, help_text, number in _COUNTERS:
        yield counters(name, help_text, ["rank"], _by_rank(ranks, number))
    yield counters(
        "keepwarm_hit_tokens",
        "Prompt tokens that were not read again, by the tier they were in",
        ["rank", "tier"],
        (((rank, tier), number) for rank, told in ranks for tier, number in _hits(told)),
    )
    yield gauges(
        "keepwarm_l0_blocks",
        "Blocks of device memory, by state",
        ["rank", "state"],
        (((rank, state), number) for rank, told in ranks for state, number in _l0_blocks(told).items()),
    )


def _copy_metrics(ranks: _Ranks) -> Iterator[Metric]:
    """`promote` is up into device memory, `demote` down into host memory."""
    moved: Sequence[tuple[str, str, _Number, _Number]] = (
        (
            "keepwarm_copied_blocks",
            "Blocks copied between device and host memory",
            lambda told: told.promoted_blocks_total,
            lambda told: told.demoted_blocks_total,
        ),
        (
            "keepwarm_copied_bytes",
            "Bytes copied between device and host memory",
            lambda told: told.promoted_bytes_total,
            lambda told: told.demoted_bytes_total,
        ),
        (
            "keepwarm_copy_seconds",
            "Seconds that copies between device and host memory took, waiting not counted",
            lambda told: told.promote_s_total,
            lambda told: told.demote_s_total,
        ),
    )
    for name, help_text, up, down in moved:
        directions = (("promote", up), ("demote", down))
        yield counters(
            name,
            help_text,
            ["rank", "direction"],
            (((rank, way), number(told)) for rank, told in ranks for way, number in directions),
        )
    yield gauges(
        "keepwarm_host_tier_on",
        "1: the rank copies to and from host memory; 0: it was switched off, and the log says why",
        ["rank"],
        (((rank,), told.host_tier == "on") for rank, told in ranks if told.host_tier),
    )


def _change_metrics(changes: Mapping[Change, int]) -> Iterator[Metric]:
    """Counted by the front, so a rank's restart does not set them back."""
    for kind, help_text in (
        ("stored", "Blocks that others can find from then on"),
        ("evicted", "Blocks that nobody finds any more"),
    ):
        yield counters(
            f"keepwarm_{kind}_blocks",
            f"{help_text}, by tier and reason",
            ["rank", "tier", "reason"],
            (
                (("" if rank is None else str(rank), tier, reason), count)
                for (rank, tier, changed, reason), count in changes.items()
                if changed == kind
            ),
        )


def _host_metrics(host: HostView | None) -> Iterator[Metric]:
    if host is None:
        return
    yield gauge("keepwarm_l1_on", "1: host memory takes and gives blocks", host.off_reason is None)
    yield gauges("keepwarm_l1_blocks", "Blocks of host memory, by state", ["state"], by_label(host.blocks))
    yield gauge("keepwarm_l1_blocks_capacity", "Blocks of host memory in all", sum(host.blocks.values()))
    yield counters(
        "keepwarm_l1_refused_blocks",
        "Blocks that found no room in host memory",
        [],
        [((), host.refused_blocks_total)],
    )


def _disk_metrics(disk: DiskView | None) -> Iterator[Metric]:
    if disk is None:
        return
    yield gauge("keepwarm_disk_on", "1: blocks are written to disk", disk.off_reason is None)
    yield gauge("keepwarm_disk_blocks", "Blocks on disk", disk.num_blocks)
    yield gauge("keepwarm_disk_bytes", "Bytes of blocks on disk", disk.num_bytes)
    yield gauge("keepwarm_disk_bytes_capacity", "Bytes that may lie on disk", disk.budget_bytes)
    for name, help_text, number in (
        ("keepwarm_disk_read_blocks", "Blocks brought up from disk", disk.read_blocks_total),
        ("keepwarm_disk_written_blocks", "Blocks written to disk", disk.written_blocks_total),
        (
            "keepwarm_disk_damaged_blocks",
            "Blocks on disk that were other than what was written, and not used",
            disk.damaged_blocks_total,
        ),
    ):
        yield counters(name, help_text, [], [((), number)])


def _occupancy_metrics(ranks: _Ranks, host: HostView | None) -> Iterator[Metric]:
    used: list[tuple[tuple[str, str], float]] = [
        ((rank, "l0"), _occupancy(_l0_blocks(told))) for rank, told in ranks if told.blocks_total
    ]
    if host is not None and any(host.blocks.values()):
        used.append((("", "l1"), _occupancy(host.blocks)))
    if host is not None and host.disk is not None and host.disk.budget_bytes:
        used.append((("", "disk"), host.disk.num_bytes / host.disk.budget_bytes))
    yield gauges(
        "keepwarm_occupancy_ratio",
        "Share of a tier that is in use: of its blocks, on disk of its bytes",
        ["rank", "tier"],
        used,
    )


def _by_rank(ranks: _Ranks, number: _Number) -> Samples:
    return (((rank,), number(told)) for rank, told in ranks)


def _hits(told: RankStats) -> Sequence[tuple[str, int]]:
    hits = CachedTokens.of(
        cached=told.cached_tokens_total, host=told.host_tokens_total, disk=told.disk_tokens_total
    )
    return ("l0", hits.l0), ("l1", hits.l1), ("disk", hits.disk)


def _l0_blocks(told: RankStats) -> Mapping[str, int]:
    return {"held": told.blocks_held, "cached": told.blocks_cached, "empty": told.blocks_empty}


def _occupancy(blocks: Mapping[str, int]) -> float:
    return 1 - blocks.get("empty", 0) / sum(blocks.values())
