"""An alarm rings when it was last set for, however often it was moved, and costs one timer."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from keepwarm.gateway.alarm import Alarm


@dataclass
class FakeTimer:
    when: float
    callback: Callable[[], None]
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True


@dataclass
class FakeLoop:
    """Time passes when the test says so."""

    now: float = 0.0
    timers: list[FakeTimer] = field(default_factory=list)
    num_timers: int = 0

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None], /) -> FakeTimer:
        timer = FakeTimer(when, callback)
        self.timers.append(timer)
        self.num_timers += 1
        return timer

    def pass_until(self, now: float) -> None:
        while due := [timer for timer in self.timers if timer.when <= now and not timer.is_cancelled]:
            timer = min(due, key=lambda timer: timer.when)
            self.timers.remove(timer)
            self.now = max(self.now, timer.when)
            timer.callback()
        self.now = max(self.now, now)

    @property
    def is_empty(self) -> bool:
        return all(timer.is_cancelled for timer in self.timers)


class Bell:
    """An alarm, and when it rang."""

    def __init__(self) -> None:
        self.loop = FakeLoop()
        self.rang_at: list[float] = []
        self.alarm = Alarm(lambda: self.rang_at.append(self.loop.now), self.loop)


@pytest.fixture
def bell() -> Bell:
    return Bell()


def test_it_rings_once_at_its_time(bell: Bell) -> None:
    bell.alarm.set(5.0)
    bell.loop.pass_until(4.9)
    assert bell.rang_at == []
    bell.loop.pass_until(100.0)
    assert bell.rang_at == [5.0]


def test_moved_later_it_rings_later(bell: Bell) -> None:
    bell.alarm.set(5.0)
    bell.loop.pass_until(4.0)
    bell.alarm.set(7.0)
    bell.loop.pass_until(100.0)
    assert bell.rang_at == [7.0]


def test_moved_earlier_it_rings_earlier(bell: Bell) -> None:
    bell.alarm.set(300.0)
    bell.alarm.set(2.0)
    bell.loop.pass_until(1000.0)
    assert bell.rang_at == [2.0]


def test_stopped_it_does_not_ring_and_can_be_set_again(bell: Bell) -> None:
    bell.alarm.set(5.0)
    bell.alarm.stop()
    bell.loop.pass_until(6.0)
    assert bell.rang_at == []
    bell.alarm.set(8.0)
    bell.loop.pass_until(10.0)
    assert bell.rang_at == [8.0]


def test_closed_it_leaves_nothing_in_the_loop(bell: Bell) -> None:
    bell.alarm.set(5.0)
    bell.alarm.stop()
    assert not bell.loop.is_empty
    bell.alarm.close()
    assert bell.loop.is_empty
    bell.loop.pass_until(10.0)
    assert bell.rang_at == []


def test_a_thousand_moves_are_a_handful_of_timers(bell: Bell) -> None:
    for number in range(1000):
        bell.loop.pass_until(number * 0.05)
        bell.alarm.set(bell.loop.now + 10.0)
        bell.alarm.stop()
    assert bell.rang_at == []
    assert bell.loop.num_timers <= 7


@pytest.mark.parametrize("seed", range(20))
def test_it_rings_just_as_a_timer_of_its_own_for_each_setting_would(bell: Bell, seed: int) -> None:
    rng = random.Random(seed)
    due: float | None = None
    expected: list[float] = []
    for _ in range(200):
        now = bell.loop.now + rng.random()
        if due is not None and due <= now:
            expected.append(due)
            due = None
        bell.loop.pass_until(now)
        match rng.randrange(4):
            case 0:
                bell.alarm.stop()
                due = None
            case 1 | 2:
                due = now + rng.choice((0.1, 0.5, 3.0))
                bell.alarm.set(due)
            case _:
                pass
    assert bell.rang_at == expected
