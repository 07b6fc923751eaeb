"""A rank's numbers, put together for whoever watches. Counts nothing itself."""

from __future__ import annotations

from collections.abc import Mapping

from keepwarm.cache.prefix import PrefixCache
from keepwarm.core.rank_messages import RankStats
from keepwarm.sched.tiers import Tiers


def rank_stats(
    totals: Mapping[str, int], *, cache: PrefixCache, tiers: Tiers, waiting: int, running: int
) -> RankStats:
    """`totals` are the scheduler's own, by the fields' names without `_total`."""
    occupancy = cache.occupancy()
    promoted, demoted = tiers.promoted, tiers.demoted
    return RankStats(
        steps_total=totals["steps"],
        prompt_tokens_total=totals["prompt_tokens"],
        cached_tokens_total=totals["cached_tokens"],
        computed_tokens_total=totals["computed_tokens"],
        output_tokens_total=totals["output_tokens"],
        preemptions_total=totals["preemptions"],
        evicted_blocks_total=cache.counters.evicted_blocks,
        waiting=waiting,
        running=running,
        blocks_total=occupancy.total,
        blocks_held=occupancy.held,
        blocks_cached=occupancy.cached,
        blocks_empty=occupancy.empty,
        constrained_turns_total=totals["constrained_turns"],
        host_tokens_total=totals["host_tokens"],
        disk_tokens_total=totals["disk_tokens"],
        promoted_blocks_total=promoted.num_blocks,
        demoted_blocks_total=demoted.num_blocks,
        promoted_bytes_total=promoted.num_bytes,
        demoted_bytes_total=demoted.num_bytes,
        promote_s_total=promoted.copy_s,
        demote_s_total=demoted.copy_s,
        skipped_promotions_total=tiers.promotions.num_skipped,
        replayed_tokens_total=cache.counters.replayed_blocks * cache.layout.block_size,
        copies_in_flight=tiers.num_in_flight,
        host_tier=tiers.host_state,
    )
