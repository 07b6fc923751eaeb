from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from keepwarm.backend.rank_metrics import FrontCounts, metrics_text
from tests.backend.ports import Ear, in_process_rank, turn


def samples(text: str) -> dict[str, float]:
    return {
        sample.name + "".join(f"/{value}" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


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
    told = samples(metrics_text(port, counts))
    await port.close()
    assert told["keepwarm_backend_ready"] == 1
    assert told["keepwarm_backend_requests_open"] == 3
    assert told["keepwarm_backend_requests_total/aborted"] == 2
    assert told["keepwarm_malformed_markup_total/hermes"] == 4
    assert told["keepwarm_prompt_tokens_total"] == 8
    assert told["keepwarm_output_tokens_total"] == 4
    assert told["keepwarm_computed_tokens_total"] == 11
    states = [told[f"keepwarm_l0_blocks/{state}"] for state in ("held", "cached", "empty")]
    assert sum(states) == told["keepwarm_l0_blocks_capacity"]


async def test_a_rank_that_has_said_nothing_has_no_numbers_and_is_not_ready() -> None:
    told = samples(
        metrics_text(in_process_rank(), FrontCounts(num_open=0, outcomes={}, malformed={}, memory_bytes={}))
    )
    assert told == {
        "keepwarm_backend_ready": 0,
        "keepwarm_backend_requests_open": 0,
        "keepwarm_rank_restarts_total": 0,
    }
