from __future__ import annotations

from keepwarm.core.restarts import RestartLimits, Restarts


def test_the_delay_doubles_with_each_loss_and_the_fifth_is_the_last() -> None:
    restarts = Restarts(RestartLimits())
    assert [restarts.delay_after_loss(float(i)) for i in range(5)] == [1.0, 2.0, 4.0, 8.0, None]


def test_the_delay_never_exceeds_its_limit() -> None:
    restarts = Restarts(RestartLimits(max_losses=100))
    assert [restarts.delay_after_loss(0.0) for _ in range(7)][-2:] == [30.0, 30.0]


def test_losses_before_the_window_are_forgotten() -> None:
    restarts = Restarts(RestartLimits())
    for i in range(4):
        restarts.delay_after_loss(float(i))
    assert restarts.delay_after_loss(603.0) == 1.0
