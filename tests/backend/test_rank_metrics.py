from __future__ import annotations

from collections.abc import Mapping

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from keepwarm.backend.cache_journal import Change
from keepwarm.backend.host_observer import DiskView, HostView
from keepwarm.backend.rank_metrics import FrontCounts, metrics_text
from keepwarm.backend.rank_port import RankView
from keepwarm.core.rank_messages import RankStats
from tests.backend.ports import Ear, in_process_rank, turn

NOTHING = FrontCounts(num_open=0, outcomes={}, malformed={}, memory_bytes={})
STATS = RankStats(
    steps_total=1,
    prompt_tokens_total=1000,
    cached_tokens_total=900,
    computed_tokens_total=150,
    output_tokens_total=50,
    preemptions_total=0,
    evicted_blocks_total=7,
    waiting=2,
    running=3,
    blocks_total=100,
    blocks_held=10,
    blocks_cached=60,
    blocks_empty=30,
    host_tokens_total=500,
    disk_tokens_total=100,
    promoted_blocks_total=31,
    demoted_blocks_total=32,
    promoted_bytes_total=3100,
    demoted_bytes_total=3200,
    promote_s_total=0.5,
    demote_s_total=0.25,
    skipped_promotions_total=4,
    replayed_tokens_total=64,
    copies_in_flight=1,
    host_tier="on",
)


def samples(text: str) -> dict[str, float]:
    """By name and the labels' values, in the order of the labels' names."""
    return {
        sample.name + "".join(f"/{value}" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def told_by(
    *views: RankView, changes: Mapping[Change, int] | None = None, host: HostView | None = None
) -> dict[str, float]:
    return samples(metrics_text(views, NOTHING, is_ready=True, changes=changes, host=host))


def view(rank: int = 0, stats: RankStats | None = STATS) -> RankView:
    return RankView(rank=rank, state="serving", stats=stats, num_restarts=rank)


async def test_a_rank_s_numbers_are_told_under_their_names() -> None:
    port = in_process_rank()
    await port.start()
    counts = FrontCounts(
        num_open=3,
        outcomes={"max_tokens": 1, "aborted": 2},
        malformed={"hermes": 4},
        memory_bytes={"segments": 7},
    )
    ear = Ear()
    port.submit(turn("a", num_prompt_tokens=8, max_output_tokens=4), ear)
    await ear.end()
    told = samples(metrics_text(port.ranks, counts, is_ready=True))
    await port.close()
    assert told["keepwarm_backend_ready"] == 1
    assert told["keepwarm_backend_requests_open"] == 3
    assert told["keepwarm_backend_requests_total/aborted"] == 2
    assert told["keepwarm_malformed_markup_total/hermes"] == 4
    assert told["keepwarm_front_memory_bytes/segments"] == 7
    assert told["keepwarm_rank_state/0/serving"] == 1
    assert told["keepwarm_prompt_tokens_total/0"] == 8
    assert told["keepwarm_output_tokens_total/0"] == 4
    assert told["keepwarm_computed_tokens_total/0"] == 11
    states = [told[f"keepwarm_l0_blocks/0/{state}"] for state in ("held", "cached", "empty")]
    assert sum(states) == told["keepwarm_l0_blocks_capacity/0"]


async def test_a_rank_that_has_said_nothing_has_no_numbers_and_is_not_ready() -> None:
    told = samples(metrics_text(in_process_rank().ranks, NOTHING, is_ready=False))
    assert {name: number for name, number in told.items() if number} == {"keepwarm_rank_state/0/loading": 1}
    assert told["keepwarm_backend_ready"] == 0
    assert told["keepwarm_rank_restarts_total/0"] == 0
    assert not any(name.startswith(("keepwarm_l0_blocks", "keepwarm_hit_tokens")) for name in told)


def test_hits_are_told_by_tier_and_add_up_with_the_misses() -> None:
    told = told_by(view())
    hits = [told[f"keepwarm_hit_tokens_total/0/{tier}"] for tier in ("l0", "l1", "disk")]
    assert hits == [400, 400, 100]
    assert sum(hits) == told["keepwarm_cached_tokens_total/0"]
    assert sum(hits) + told["keepwarm_missed_tokens_total/0"] == told["keepwarm_prompt_tokens_total/0"]


def test_copies_are_told_by_direction() -> None:
    told = told_by(view())
    assert [told[f"keepwarm_copied_blocks_total/{way}/0"] for way in ("promote", "demote")] == [31, 32]
    assert [told[f"keepwarm_copied_bytes_total/{way}/0"] for way in ("promote", "demote")] == [3100, 3200]
    assert [told[f"keepwarm_copy_seconds_total/{way}/0"] for way in ("promote", "demote")] == [0.5, 0.25]
    assert told["keepwarm_copies_in_flight/0"] == 1
    assert told["keepwarm_skipped_promotions_total/0"] == 4


def test_what_is_computed_again_for_layers_with_a_window_is_told() -> None:
    assert told_by(view())["keepwarm_replayed_tokens_total/0"] == 64


def test_each_rank_has_numbers_of_its_own() -> None:
    told = told_by(view(0), view(1), view(2, None))
    assert told["keepwarm_steps_total/0"] == told["keepwarm_steps_total/1"] == 1
    assert "keepwarm_steps_total/2" not in told
    assert [told[f"keepwarm_rank_restarts_total/{rank}"] for rank in range(3)] == [0, 1, 2]


def test_the_host_tier_s_state_is_told_where_a_rank_has_one() -> None:
    on, off, none = [
        RankView(
            rank=rank,
            state="serving",
            stats=msgspec.structs.replace(STATS, host_tier=word),
            num_restarts=0,
        )
        for rank, word in enumerate(("on", "a checksum did not match", ""))
    ]
    told = told_by(on, off, none)
    assert told["keepwarm_host_tier_on/0"] == 1
    assert told["keepwarm_host_tier_on/1"] == 0
    assert "keepwarm_host_tier_on/2" not in told


def test_changes_are_told_by_tier_and_reason() -> None:
    told = told_by(
        view(),
        changes={
            (0, "l0", "evicted", "room"): 5,
            (0, "l0", "stored", "promoted"): 6,
            (None, "l1", "evicted", "dropped"): 7,
        },
    )
    assert told["keepwarm_evicted_blocks_total/0/room/l0"] == 5
    assert told["keepwarm_stored_blocks_total/0/promoted/l0"] == 6
    assert told["keepwarm_evicted_blocks_total//dropped/l1"] == 7


def test_host_memory_has_blocks_by_state_and_each_tier_its_occupancy() -> None:
    blocks = {"writing": 1, "leased": 2, "cached": 5, "empty": 2}
    told = told_by(view(), host=HostView(off_reason=None, blocks=blocks, refused_blocks_total=9))
    assert told["keepwarm_l1_on"] == 1
    assert told["keepwarm_l1_blocks/cached"] == 5
    assert told["keepwarm_l1_blocks_capacity"] == 10
    assert told["keepwarm_l1_refused_blocks_total"] == 9
    assert told["keepwarm_occupancy_ratio/0/l0"] == 0.7
    assert told["keepwarm_occupancy_ratio//l1"] == 0.8
    assert not any(name.startswith("keepwarm_disk") for name in told)


def test_a_disk_has_its_blocks_bytes_and_what_was_wrong_with_them() -> None:
    disk = DiskView(
        off_reason="the disk is full",
        num_blocks=3,
        num_bytes=30,
        budget_bytes=120,
        read_blocks_total=4,
        written_blocks_total=5,
        damaged_blocks_total=6,
    )
    told = told_by(view(), host=HostView(off_reason=None, blocks={}, refused_blocks_total=0, disk=disk))
    assert told["keepwarm_disk_on"] == 0
    assert told["keepwarm_disk_blocks"] == 3
    assert [told[f"keepwarm_disk_{did}_blocks_total"] for did in ("read", "written", "damaged")] == [4, 5, 6]
    assert told["keepwarm_occupancy_ratio//disk"] == 30 / told["keepwarm_disk_bytes_capacity"] == 0.25
