"""The engine loop over a real socket, in a thread."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from keepwarm.backend.rank_builder import build_rank
from keepwarm.backend.rank_engine import RankEngine
from keepwarm.backend.rank_link import BlockingLink, LinkClosed, encode_message, from_rank_decoder
from keepwarm.backend.rank_main import serve
from keepwarm.backend.scripted_limits import scripted_limits
from keepwarm.core.errors import InvariantBroken
from keepwarm.core.hashing import BlockHasher
from keepwarm.core.rank_messages import Admitted, Ended, FromRank, Ready, Report, Shutdown, ToRank
from keepwarm.engine.scripted import ScriptedExecutor
from keepwarm.sched.scheduler import Scheduler, SchedulerSettings
from tests.backend.ports import KEY, LONG_TOKENS, PATIENCE_S, scripted_settings, turn

HEARTBEAT_S = 0.01


class Front:
    """Talks to a rank's loop from outside its thread."""

    def __init__(self, engine: RankEngine, ready: Ready) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(PATIENCE_S)
        self._decoder = from_rank_decoder()
        self._pool = ThreadPoolExecutor(max_workers=1)
        self.status: Future[int] = self._pool.submit(
            lambda: serve(engine, ready, BlockingLink(theirs), heartbeat_s=HEARTBEAT_S)
        )
        self.status.add_done_callback(lambda _: theirs.close())

    def say(self, message: ToRank) -> None:
        self._socket.sendall(encode_message(message))

    def hear(self) -> Iterator[FromRank]:
        while piece := self._socket.recv(1 << 16):
            yield from self._decoder.feed(piece)

    def hear_all(self) -> list[FromRank]:
        """Everything until it closes its end."""
        return list(self.hear())

    def hear_end_of(self, name: str) -> Ended:
        for message in self.hear():
            if isinstance(message, Report):
                for event in message.events:
                    if isinstance(event, Ended) and event.request_id == name:
                        return event
        raise AssertionError(f"{name} has not ended")

    def close(self) -> None:
        self._socket.close()
        self._pool.shutdown()


def make_engine(*, fail_at_step: int | None = None) -> tuple[RankEngine, Scheduler, Ready]:
    _, ready = build_rank(scripted_settings(), hash_key=KEY)
    limits = scripted_limits(scripted_settings())
    scheduler = Scheduler(
        limits=limits,
        hasher=BlockHasher(key=KEY, block_size=limits.layout.block_size),
        settings=SchedulerSettings(max_num_batched_tokens=64),
    )
    executor = ScriptedExecutor(limits=limits, verify=False, fail_at_step=fail_at_step)
    return RankEngine(scheduler=scheduler, executor=executor), scheduler, ready


def test_ready_comes_first_and_an_idle_rank_keeps_saying_that_it_lives() -> None:
    engine, _, ready = make_engine()
    front = Front(engine, ready)
    said = front.hear()
    assert next(said) == ready
    for _ in range(3):
        beat = next(said)
        assert isinstance(beat, Report)
        assert beat.events == ()
    front.say(Shutdown())
    assert front.status.result(PATIENCE_S) == 0
    front.close()


def test_shutdown_ends_open_turns_as_aborted() -> None:
    engine, _, ready = make_engine()
    front = Front(engine, ready)
    front.say(turn("a", max_output_tokens=LONG_TOKENS))
    front.say(Shutdown())
    assert front.hear_end_of("a").reason == "aborted"
    assert front.status.result(PATIENCE_S) == 0
    front.close()


def test_a_failing_step_ends_every_open_turn_and_the_rank(caplog: pytest.LogCaptureFixture) -> None:
    engine, _, ready = make_engine(fail_at_step=3)
    front = Front(engine, ready)
    front.say(turn("a", max_output_tokens=100))
    end = front.hear_end_of("a")
    assert end.reason == "failed"
    assert end.error is not None
    assert end.error.fields["message"] == "the engine stopped on RuntimeError; the backend's log says where"
    assert front.status.result(PATIENCE_S) == 1
    assert "scripted failure at step 3" in caplog.text
    front.close()


def test_the_front_s_death_ends_the_rank_in_the_middle_of_its_work() -> None:
    engine, _, ready = make_engine()
    front = Front(engine, ready)
    front.say(turn("a", max_output_tokens=LONG_TOKENS))
    front.close()
    with pytest.raises(LinkClosed):
        front.status.result(PATIENCE_S)


def test_integrity_is_checked_once_it_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, scheduler, ready = make_engine()

    def find_a_lost_block() -> None:
        raise InvariantBroken("block 7 is lost")

    monkeypatch.setattr(scheduler, "check_integrity", find_a_lost_block)
    front = Front(engine, ready)
    front.say(turn("a"))
    assert front.hear_end_of("a").reason == "length"
    assert front.status.result(PATIENCE_S) == 1
    front.close()


@pytest.mark.parametrize("max_steps_in_flight", [1, 2])
def test_steps_in_flight_change_nothing_a_turn_can_see(max_steps_in_flight: int) -> None:
    limits = scripted_limits(scripted_settings())
    hasher = BlockHasher(key=KEY, block_size=limits.layout.block_size)
    scheduler = Scheduler(limits=limits, hasher=hasher, settings=SchedulerSettings(max_num_batched_tokens=64))
    executor = ScriptedExecutor(limits=limits)
    engine = RankEngine(scheduler=scheduler, executor=executor, max_steps_in_flight=max_steps_in_flight)
    for name in ("a", "b"):
        engine.handle(turn(name, num_prompt_tokens=100, max_output_tokens=9))
    reports: list[Report] = []
    while engine.step(reports.append) or engine.has_work:
        reports.append(engine.report())
    events = [event for report in reports for event in report.events]
    engine.close()
    assert [event.reason for event in events if isinstance(event, Ended)] == ["length", "length"]
    engine.check_when_idle()


def test_an_admission_is_told_before_its_step_is_computed() -> None:
    engine, _, ready = make_engine(fail_at_step=1)
    front = Front(engine, ready)
    front.say(turn("a"))
    reports = [message for message in front.hear_all() if isinstance(message, Report)]
    events = [event for report in reports for event in report.events]
    assert [type(event) for event in events] == [Admitted, Ended]
    front.close()
