"""A process that is kept alive: small real processes that end as they are told."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import psutil
import pytest
import uvloop

from keepwarm.core.errors import Degraded, NotReady, SetupError
from keepwarm.core.restarts import RestartLimits
from keepwarm.worker.process import ChildProcess, StartRefused
from keepwarm.worker.supervised import Supervised

PATIENCE_S = 30.0
AT_ONCE = RestartLimits(first_delay_s=0.0, max_delay_s=0.0, max_losses=3)
SERVES = "import sys, pathlib; pathlib.Path(sys.argv[1]).touch(); sys.stdin.read()"
CRASHES = "print('half way'); import sys; sys.exit(7)"
REFUSES = "import sys; sys.stderr.write('error: --port 0 is wrong\\n'); sys.exit(2)"
HAS_NO_ROOM = "import sys; sys.stderr.write('error: no memory is left\\n'); sys.exit(3)"
NEVER_READY = "import sys; sys.stdin.read()"


class TouchingChild(ChildProcess[str]):
    """Ready once it has made its file."""

    def __init__(
        self, folder: Path, number: int, code: str, on_log_line: Callable[[str], None] | None = None
    ) -> None:
        self._file = folder / f"ready.{number}"
        command = (sys.executable, "-c", code, str(self._file))
        super().__init__("toy", {}, command=command, on_log_line=on_log_line)

    @contextlib.asynccontextmanager
    async def asking(self) -> AsyncIterator[Callable[[], Awaitable[str | None]]]:
        async def ask() -> str | None:
            return self._file.name if self._file.exists() else None

        yield ask


class Lives:
    """Makes one life after another; the last kind goes on."""

    def __init__(self, folder: Path, *codes: str) -> None:
        self._folder = folder
        self._codes = list(codes)
        self.children: list[TouchingChild] = []

    async def __call__(self) -> TouchingChild:
        number = len(self.children)
        code = self._codes[min(number, len(self._codes) - 1)]
        self.children.append(TouchingChild(self._folder, number, code))
        return self.children[-1]

    def kill(self) -> None:
        os.kill(self.children[-1].pid, signal.SIGKILL)


@contextlib.asynccontextmanager
async def supervised(
    lives: Lives, *, limits: RestartLimits = AT_ONCE, start_limit_s: float = PATIENCE_S
) -> AsyncIterator[Supervised[str]]:
    others = children()  # of fixtures that live longer than this test
    toy = Supervised("toy", lives, limits=limits, start_limit_s=start_limit_s, stop_limit_s=PATIENCE_S)
    try:
        yield toy
    finally:
        async with asyncio.timeout(PATIENCE_S):
            await toy.stop()
        assert children() == others


def children() -> set[int]:
    """Pids of what this process has started and has not ended."""
    return {child.pid for child in psutil.Process().children()}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.01)


async def test_the_first_life_serves_and_its_stop_leaves_nothing(tmp_path: Path) -> None:
    async with supervised(Lives(tmp_path, SERVES)) as toy:
        assert "is starting" in str(toy.trouble)
        assert await toy.start() == "ready.0"
        assert toy.trouble is None
    assert "is shutting down" in str(toy.trouble)


async def test_a_lost_life_is_followed_by_another(tmp_path: Path) -> None:
    lives = Lives(tmp_path, SERVES)
    async with supervised(lives) as toy:
        await toy.start()
        lives.kill()
        await until(lambda: toy.num_restarts == 1)
        assert await toy.settled() is None
        assert len(lives.children) == 2


async def test_while_there_is_none_it_says_why(tmp_path: Path) -> None:
    lives = Lives(tmp_path, SERVES)
    async with supervised(lives, limits=RestartLimits(first_delay_s=3600.0, max_delay_s=3600.0)) as toy:
        await toy.start()
        lives.kill()
        await until(lambda: "started again" in str(toy.trouble))
        assert type(toy.trouble) is NotReady
        assert "the toy was lost (killed by SIGKILL" in str(toy.trouble)


async def test_a_first_start_that_fails_is_the_callers(tmp_path: Path) -> None:
    lives = Lives(tmp_path, CRASHES)
    async with supervised(lives) as toy:
        with pytest.raises(SetupError, match=r"exit status 7\); its last log lines:\n  half way"):
            await toy.start()
        assert len(lives.children) == 1


async def test_a_life_that_ends_too_often_is_left(tmp_path: Path) -> None:
    lives = Lives(tmp_path, SERVES, CRASHES)
    async with supervised(lives) as toy:
        await toy.start()
        lives.kill()
        await until(lambda: isinstance(toy.trouble, Degraded))
        assert str(toy.trouble) == (
            "the toy was lost 3 times within 600 s and is left stopped; "
            "the last time: the toy ended while starting (exit status 7)"
        )
        assert len(lives.children) == 3


async def test_one_that_may_end_once_is_not_started_again(tmp_path: Path) -> None:
    lives = Lives(tmp_path, SERVES)
    async with supervised(lives, limits=RestartLimits(max_losses=1)) as toy:
        await toy.start()
        lives.kill()
        await until(lambda: isinstance(toy.trouble, Degraded))
        assert "lost once within" in str(toy.trouble)


async def test_a_setting_that_is_refused_is_not_tried_twice(tmp_path: Path) -> None:
    lives = Lives(tmp_path, SERVES, REFUSES)
    async with supervised(lives) as toy:
        await toy.start()
        lives.kill()
        await until(lambda: isinstance(toy.trouble, Degraded))
        assert "cannot be started again: --port 0 is wrong" in str(toy.trouble)
        assert len(lives.children) == 2


async def test_what_may_pass_is_tried_again(tmp_path: Path) -> None:
    lives = Lives(tmp_path, SERVES, HAS_NO_ROOM, HAS_NO_ROOM, SERVES)
    async with supervised(lives, limits=RestartLimits(first_delay_s=0.0)) as toy:
        await toy.start()
        lives.kill()
        await until(lambda: len(lives.children) == 4 and toy.trouble is None)


async def test_a_log_that_cannot_be_written_does_not_stop_its_reading(tmp_path: Path) -> None:
    heard: list[str] = []

    def disk_full(line: str) -> None:
        heard.append(line)
        raise OSError(errno.ENOSPC, "No space left on device")

    child = TouchingChild(tmp_path, 1, f"print('one'); print('two'); {SERVES}", on_log_line=disk_full)
    await child.start()
    await child.wait_until_ready(PATIENCE_S)
    await child.stop()
    assert heard == ["one", "two"]


async def test_one_that_is_never_ready_counts_as_lost(tmp_path: Path) -> None:
    lives = Lives(tmp_path, SERVES, NEVER_READY)
    limits = RestartLimits(first_delay_s=0.0, max_losses=2)
    async with supervised(lives, limits=limits, start_limit_s=0.3) as toy:
        with contextlib.suppress(SetupError):  # a slow machine's first start may be too slow as well
            await toy.start()
            lives.kill()
            await until(lambda: isinstance(toy.trouble, Degraded))
            assert "was not ready within 0.3 s" in str(toy.trouble)


async def test_a_stop_ends_a_start_that_goes_on(tmp_path: Path) -> None:
    lives = Lives(tmp_path, SERVES, NEVER_READY)
    async with supervised(lives) as toy:
        await toy.start()
        lives.kill()
        await until(lambda: len(lives.children) == 2)


async def test_a_cancelled_first_start_leaves_nothing(tmp_path: Path) -> None:
    lives, others = Lives(tmp_path, NEVER_READY), children()
    async with supervised(lives) as toy:
        starting = asyncio.create_task(toy.start())
        await until(lambda: bool(lives.children) and lives.children[0].has_started)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        assert children() == others


async def test_whoever_fails_to_make_a_life_ends_the_watch_and_not_the_caller(tmp_path: Path) -> None:
    lives = Lives(tmp_path, SERVES)
    made: list[TouchingChild] = []

    async def once() -> TouchingChild:
        if made:
            raise ZeroDivisionError
        made.append(await lives())
        return made[0]

    toy = Supervised("toy", once, limits=AT_ONCE)
    await toy.start()
    lives.kill()
    await until(lambda: isinstance(toy.trouble, Degraded))
    assert "no longer watched: ZeroDivisionError" in str(toy.trouble)
    await toy.stop()


async def test_what_a_life_started_is_gone_when_it_is(tmp_path: Path) -> None:
    """A grandchild that would outlive it holds the memory that the next one needs."""
    code = "import subprocess, sys; subprocess.Popen(['sleep', '600']); " + SERVES
    lives = Lives(tmp_path, code)
    async with supervised(lives) as toy:
        await toy.start()
        [grandchild] = psutil.Process(lives.children[0].pid).children()
        lives.kill()
        await until(lambda: toy.num_restarts == 1)
        with contextlib.suppress(psutil.NoSuchProcess):
            assert grandchild.status() == psutil.STATUS_ZOMBIE


def test_one_that_dies_before_it_is_told_anything_has_failed_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the loop of `serve`, where a write to a closed pipe raises."""

    async def start() -> None:
        child = TouchingChild(tmp_path, 0, CRASHES)
        spawn = child._spawn

        async def spawn_and_wait() -> Process:
            process = await spawn()
            await process.wait()
            assert process.stdin is not None
            while not process.stdin.is_closing():
                await asyncio.sleep(0.01)
            return process

        monkeypatch.setattr(child, "_spawn", spawn_and_wait)
        await child.start()
        with pytest.raises(SetupError, match="exit status 7"):
            await child.wait_until_ready(PATIENCE_S)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(start(), PATIENCE_S))


def test_a_refusal_keeps_its_sentence() -> None:
    assert str(StartRefused("no")) == StartRefused("no").reason == "no"
