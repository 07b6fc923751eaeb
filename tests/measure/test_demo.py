"""The demo's driver against a server whose truthfulness is a parameter."""

from __future__ import annotations

import pytest

from keepwarm.measure.demo import DemoReport, DemoSettings, DemoTurn, Watcher, run_demo
from keepwarm.measure.messages_api import MessagesApi, RequestFailed
from tests.measure.fake_server import BLOCK_SIZE, KEY, FakeMessagesServer, ManualClock

SETTINGS = DemoSettings(model="fake", block_size=BLOCK_SIZE)


@pytest.fixture
def server() -> FakeMessagesServer:
    return FakeMessagesServer(ManualClock())


async def demo(server: FakeMessagesServer, watcher: Watcher | None = None, key: str = KEY) -> DemoReport:
    async with server.client() as client:
        api = MessagesApi(client, key=key, clock=server.clock)
        return await run_demo(api, SETTINGS, version="1.2.3", watcher=watcher or Watcher())


async def test_a_truthful_cache_passes(server: FakeMessagesServer) -> None:
    report = await demo(server)

    assert report.passed
    assert report.problems == ()
    assert len(report.turns) == SETTINGS.num_agents * SETTINGS.num_turns
    assert all(turn.identical for turn in report.turns)


async def test_nine_turns_must_hit_and_do(server: FakeMessagesServer) -> None:
    report = await demo(server)

    later = [turn for turn in report.turns if turn.turn > 1]
    assert len(later) == 9
    assert all(turn.cached_tokens >= turn.expected_cached_tokens > 0 for turn in later)


async def test_first_turns_expect_nothing_of_the_cache(server: FakeMessagesServer) -> None:
    report = await demo(server)

    assert [turn.expected_cached_tokens for turn in report.turns if turn.turn == 1] == [0, 0, 0]


async def test_a_miss_fails_and_names_the_turn(server: FakeMessagesServer) -> None:
    server.forgets_turn = 10  # the first request of the fourth round

    report = await demo(server)

    assert not report.passed
    assert [(turn.agent, turn.turn) for turn in report.turns if turn.missed] == [
        ("harbour", 4),
        ("orchard", 4),
        ("library", 4),
    ]
    assert report.problems[0].startswith("harbour, turn 4 missed: 0 tokens were cached, at least ")


async def test_a_cached_answer_that_differs_from_its_cold_run_fails(server: FakeMessagesServer) -> None:
    server.cached_answers_differ = True

    report = await demo(server)

    assert not report.passed
    assert "harbour, turn 2: the answer differs from its cold run" in report.problems
    assert not any(turn.missed for turn in report.turns)


async def test_a_cold_run_that_was_not_cold_fails(server: FakeMessagesServer) -> None:
    server.ignores_bypass = True

    report = await demo(server)

    assert not report.passed
    assert "the cold run was not cold" in report.problems[0]


async def test_a_cold_run_that_fails_is_a_problem_of_its_turn_alone(server: FakeMessagesServer) -> None:
    server.fails_bypass = True

    report = await demo(server)

    assert len(report.problems) == 12
    assert report.problems[0] == "harbour, turn 1: its cold run failed: status 529: busy"


async def test_cold_runs_repeat_the_very_requests(server: FakeMessagesServer) -> None:
    await demo(server)

    assert len(server.bodies) == 24
    assert server.bodies[:12] == server.bodies[12:]


async def test_times_are_the_clients_own(server: FakeMessagesServer) -> None:
    report = await demo(server)

    for turn in report.turns:
        assert turn.ttft_s == pytest.approx(turn.new_tokens * server.read_s + server.write_s)
        assert turn.tokens_per_s == pytest.approx(1 / server.write_s)


async def test_medians_are_taken_by_class(server: FakeMessagesServer) -> None:
    report = await demo(server)

    warm = sorted(turn.ttft_s for turn in report.turns if turn.turn_class == "warm")
    assert report.warm_ttft_p50_s == pytest.approx((warm[5] + warm[6]) / 2 if len(warm) == 12 else warm[4])


async def test_the_watcher_hears_of_every_turn_and_every_cold_run(server: FakeMessagesServer) -> None:
    class Listener(Watcher):
        def __init__(self) -> None:
            self.heard: list[tuple[str, bool | None]] = []

        def turn_ended(self, turn: DemoTurn) -> None:
            self.heard.append(("turn", turn.identical))

        def cold_run_ended(self, turn: DemoTurn) -> None:
            self.heard.append(("cold", turn.identical))

    listener = Listener()
    await demo(server, listener)

    assert listener.heard == [("turn", None)] * 12 + [("cold", True)] * 12


async def test_a_refusing_server_ends_the_demo_with_its_words(server: FakeMessagesServer) -> None:
    with pytest.raises(RequestFailed, match="status 401: no such key"):
        await demo(server, key="wrong")


async def test_a_broken_stream_ends_the_demo(server: FakeMessagesServer) -> None:
    server.drops_stream = True

    with pytest.raises(RequestFailed, match="ended without message_stop"):
        await demo(server)
