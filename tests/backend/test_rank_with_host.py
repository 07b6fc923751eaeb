"""A whole rank over a real `keepwarm hostcache`: what it leaves there, the next one finds."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from keepwarm.backend.rank_builder import build_rank
from keepwarm.backend.rank_engine import RankEngine
from keepwarm.backend.settings import BackendSettings
from keepwarm.core.errors import BadSetting
from keepwarm.core.hashing import BlockHasher, root_hash
from keepwarm.core.ids import RequestId, TenantId, token_ids
from keepwarm.core.rank_messages import Admitted, CacheEvent, Ended, Report, Submit, Tokens
from keepwarm.core.sampling import GREEDY
from tests.backend.hostcaches import running_hostcache
from tests.backend.ports import KEY, scripted_settings
from tests.sched.driver import make_submit
from tests.sched.tiers import Host

NUM_BLOCKS = 20
TOKENS = [number % 200 for number in range(NUM_BLOCKS * 16 + 5)]
HOST_CACHE_GB = 0.01


def turn(max_output_tokens: int) -> Submit:
    root = root_hash(KEY, TenantId("default"))
    ids = token_ids(TOKENS)
    return Submit(
        request_id=RequestId("t"),
        tokens=ids.tobytes(),
        block_hashes=BlockHasher(key=KEY, block_size=16).extend_joined(root, ids),
        root=root,
        max_output_tokens=max_output_tokens,
        stop_tokens=(),
        sampling=GREEDY,
    )


class Said:
    """What a rank told, taken together."""

    def __init__(self) -> None:
        self.reports: list[Report] = []

    def hear(self, report: Report) -> None:
        self.reports.append(report)

    @property
    def tokens(self) -> list[int]:
        events = [event for report in self.reports for event in report.events]
        return [token for event in events if isinstance(event, Tokens) for token in event.tokens]

    @property
    def admitted(self) -> Admitted:
        events = [event for report in self.reports for event in report.events]
        (admitted,) = [event for event in events if isinstance(event, Admitted)]
        return admitted

    @property
    def cache(self) -> list[CacheEvent]:
        return [event for report in self.reports for event in report.cache]


def ask(engine: RankEngine) -> Said:
    said = Said()
    engine.handle(turn(4))
    while engine.has_work:
        engine.step(said.hear)
        said.hear(engine.report())
    assert sum(isinstance(event, Ended) for report in said.reports for event in report.events) == 1
    engine.check_when_idle()
    return said


def settings_with(socket_path: str | None) -> BackendSettings:
    return scripted_settings(host_cache_socket=socket_path, max_model_len=1_024)


def test_a_new_rank_copies_up_what_the_last_one_left(tmp_path: Path) -> None:
    with running_hostcache(tmp_path, host_cache_gb=HOST_CACHE_GB) as host:
        settings = settings_with(host.socket_path)
        first, _ = build_rank(settings, hash_key=KEY)
        cold = ask(first)
        first.close()
        second, _ = build_rank(settings, hash_key=KEY, rank=1)
        warm = ask(second)
        second.close()
    assert (cold.admitted.cached_tokens, cold.admitted.host_tokens) == (0, 0)
    assert (warm.admitted.cached_tokens, warm.admitted.host_tokens) == (NUM_BLOCKS * 16, NUM_BLOCKS * 16)
    assert warm.tokens == cold.tokens
    assert [event.reason for event in warm.cache][:1] == ["promoted"]
    assert warm.reports[-1].stats.host_tier == "on"


def test_what_ended_turns_left_goes_down_before_a_rank_is_closed(tmp_path: Path) -> None:
    with running_hostcache(tmp_path, host_cache_gb=HOST_CACHE_GB) as host:
        settings = settings_with(host.socket_path)
        first, _ = build_rank(settings, hash_key=KEY)
        first.handle(turn(100))
        while not first.report().stats.output_tokens_total:
            first.step(lambda _report: None)
        first.end_all()
        first.finish_copies()
        first.close()
        second, _ = build_rank(settings, hash_key=KEY)
        assert ask(second).admitted.host_tokens == NUM_BLOCKS * 16
        second.close()


def test_a_rank_serves_on_where_the_owner_of_host_memory_died(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running_hostcache(tmp_path, host_cache_gb=HOST_CACHE_GB) as host:
        engine, _ = build_rank(settings_with(host.socket_path), hash_key=KEY)
        host.process.kill()
        host.process.wait()
        said = ask(engine)
        engine.close()
    assert len(said.tokens) == 4
    assert "does not answer" in said.reports[-1].stats.host_tier
    assert sum("host memory is off" in record.message for record in caplog.records) == 1


def test_a_rank_starts_without_host_memory_where_nobody_owns_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        engine, _ = build_rank(settings_with(str(tmp_path / "nobody.sock")), hash_key=KEY)
    assert "goes without host memory" in caplog.text
    said = ask(engine)
    engine.close()
    assert len(said.tokens) == 4
    assert said.reports[-1].stats.host_tier not in ("", "on")


def test_blocks_of_another_model_are_refused_while_a_rank_uses_the_memory(tmp_path: Path) -> None:
    with running_hostcache(tmp_path, host_cache_gb=HOST_CACHE_GB) as host:
        engine, _ = build_rank(settings_with(host.socket_path), hash_key=KEY)
        with pytest.raises(BadSetting):
            build_rank(settings_with(host.socket_path), hash_key=bytes(31) + b"x", rank=1)
        engine.close()


@pytest.mark.parametrize("depth", [1, 2])
def test_while_only_copies_remain_a_rank_neither_idles_nor_waits_for_messages(depth: int) -> None:
    host = Host()
    prompt = list(range(30))
    cold = host.rank(chunk_blocks=2).ask("cold", prompt)
    rank = host.rank(chunk_blocks=2, copy_steps=1_000, depth=depth)
    engine = RankEngine(scheduler=rank.scheduler, executor=rank.executor, max_steps_in_flight=depth)
    engine.handle(make_submit("warm", prompt))
    said = Said()
    num_idle = num_steps = 0
    while engine.has_work:
        is_busy = engine.step(said.hear)
        said.hear(engine.report())
        num_steps += 1
        num_idle += not is_busy
    assert num_idle <= 1  # the last plan only says that a slot is free
    assert said.tokens == cold
    assert said.admitted.host_tokens > 0
    assert num_steps < 30
    engine.close()
    host.check_at_rest()
