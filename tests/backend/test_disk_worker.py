from __future__ import annotations

from threading import Event

import pytest

from keepwarm.backend.disk_worker import DiskWorker, Urgency


def test_urgent_work_goes_first_and_is_told_in_the_callers_thread() -> None:
    begun, go_on, woken = Event(), Event(), Event()
    told: list[str | None] = []
    worker = DiskWorker(woken.set)

    def first() -> str:
        begun.set()
        go_on.wait(30)
        return "first"

    worker.submit(first, told.append, urgency=Urgency.BACKGROUND)
    assert begun.wait(30)
    worker.submit(lambda: "later", told.append, urgency=Urgency.BACKGROUND)
    worker.submit(lambda: "urgent", told.append, urgency=Urgency.WAITED_FOR)
    go_on.set()
    while len(told) < 3:
        assert woken.wait(30)
        woken.clear()
        worker.settle()
    assert told == ["first", "urgent", "later"]
    worker.close()


def test_at_the_end_corrections_are_made_and_the_others_told_that_nothing_was_done() -> None:
    begun, go_on = Event(), Event()
    told: list[str | None] = []
    worker = DiskWorker(lambda: None)

    def first() -> str:
        begun.set()
        go_on.wait(30)
        return "first"

    worker.submit(first, told.append, urgency=Urgency.WAITED_FOR)
    assert begun.wait(30)
    worker.submit(lambda: "never", told.append, urgency=Urgency.BACKGROUND)
    worker.submit(lambda: "corrected", told.append, urgency=Urgency.CORRECTION)
    go_on.set()
    worker.close()
    assert told == ["first", "corrected", None]


def test_work_that_raises_ends_all_work_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    woken = Event()
    told: list[str | None] = []
    worker = DiskWorker(woken.set)

    def broken() -> str:
        raise ValueError("a mistake of ours")

    worker.submit(broken, told.append, urgency=Urgency.WAITED_FOR)
    worker.submit(lambda: "never", told.append, urgency=Urgency.BACKGROUND)
    while len(told) < 2:
        assert woken.wait(30)
        woken.clear()
        worker.settle()
    worker.close()
    assert told == [None, None]
    assert worker.has_failed
    assert "a mistake of ours" in caplog.text
