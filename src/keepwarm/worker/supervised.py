"""One process of ours kept alive: a life that ends by itself is followed by another.

    starting ──ready──▶ serving ──ended──▶ lost ──delay──▶ starting ──▶ …
        │ first start: the error is the caller's  │ too often
        │ later: lost again, or, refused by the   ▼
        └─ process itself ─────────────────▶ degraded: left stopped, with the reason

Owns the lives and what is said while there is none. Knows nobody's requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from keepwarm.core.errors import Degraded, InvariantBroken, NotReady, SetupError
from keepwarm.core.exit_status import describe_exit
from keepwarm.core.restarts import RestartLimits, Restarts
from keepwarm.worker.process import DEFAULT_STOP_LIMIT_S, ChildProcess, StartFailed, StartRefused

logger = logging.getLogger(__name__)

Description = TypeVar("Description")

DEFAULT_START_LIMIT_S = 60.0


class Supervised(Generic[Description]):
    """Built with how to make a life; `start` and `stop` are called once each."""

    def __init__(
        self,
        name: str,
        new_life: Callable[[], Awaitable[ChildProcess[Description]]],
        *,
        means: str = "",
        limits: RestartLimits | None = None,
        start_limit_s: float = DEFAULT_START_LIMIT_S,
        stop_limit_s: float = DEFAULT_STOP_LIMIT_S,
    ) -> None:
        """`new_life` is awaited before each start and gives one that is not started. `means`: what a
        loss is for those who are served, for the log."""
        self.name = name
        self._means = f"; {means}" if means else ""
        self.trouble: NotReady | None = NotReady(f"the {name} is starting")
        """Why it does not serve; None: it does."""
        self.num_restarts = 0
        self._new_life = new_life
        self._restarts = Restarts(limits or RestartLimits())
        self._start_limit_s = start_limit_s
        self._stop_limit_s = stop_limit_s
        self._life: ChildProcess[Description] | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()

    async def start(self) -> Description:
        """The first life, once it serves. Raises `SetupError`; nothing of it is left then."""
        description = await self._start_life()
        self._supervisor = asyncio.create_task(self._supervise(), name=f"{self.name} supervisor")
        return description

    async def stop(self) -> None:
        """End it, whatever it does; nothing of it is left."""
        self._rest(NotReady(f"the {self.name} is shutting down"))
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        await self._end_life(self._stop_limit_s)

    async def settled(self) -> NotReady | None:
        """Wait while it is being started again; then `trouble`."""
        await self._settled.wait()
        return self.trouble

    async def _supervise(self) -> None:
        try:
            await self._keep_serving()
        except Exception as error:
            logger.exception("the %s is no longer watched", self.name)
            self._rest(Degraded(f"the {self.name} is no longer watched: {type(error).__name__}"))

    async def _keep_serving(self) -> None:
        """Returns when it is left stopped."""
        while True:
            why: str | None = await self._wait_until_lost()
            while why is not None:
                delay_s = self._restarts.delay_after_loss(asyncio.get_running_loop().time())
                if delay_s is None:
                    self._give_up(self._too_often(why))
                    return
                self._settled.clear()
                self.trouble = NotReady(f"the {self.name} was lost ({why}) and is being started again")
                logger.warning(
                    "%s lost (%s): starting it again in %.1f s%s", self.name, why, delay_s, self._means
                )
                await asyncio.sleep(delay_s)
                try:
                    why = await self._try_restart()
                except StartRefused as error:
                    self._give_up(f"the {self.name} was lost ({why}) and cannot be started again: {error}")
                    return

    async def _wait_until_lost(self) -> str:
        """How it ended; nothing of it is left."""
        if self._life is None:
            raise InvariantBroken(f"no {self.name} to watch")
        status = await self._life.wait()
        self._settled.clear()
        self.trouble = NotReady(f"the {self.name} was lost ({describe_exit(status)})")
        await self._end_life(0.0)
        return describe_exit(status)

    async def _try_restart(self) -> str | None:
        """None: it serves again; else why it does not. Raises `StartRefused`."""
        self.num_restarts += 1
        try:
            await self._start_life()
        except StartRefused:
            raise
        except StartFailed as error:
            logger.warning("%s", error)
            return error.reason
        except SetupError as error:
            return str(error)
        logger.warning("the %s serves again", self.name)
        return None

    async def _start_life(self) -> Description:
        """Raises `SetupError`; on any failure nothing of it is left."""
        life = await self._new_life()
        await life.start()
        self._life = life
        try:
            description = await life.wait_until_ready(self._start_limit_s)
        except BaseException:
            await self._end_life(self._stop_limit_s)
            raise
        self._rest(None)
        return description

    async def _end_life(self, limit_s: float) -> None:
        if self._life is not None:
            await self._life.stop(limit_s)  # again by whoever stops us, where this is cut short
            self._life = None

    def _rest(self, trouble: NotReady | None) -> None:
        """It serves, or stays as it is."""
        self.trouble = trouble
        self._settled.set()

    def _too_often(self, why: str) -> str:
        limits = self._restarts.limits
        times = "once" if limits.max_losses == 1 else f"{limits.max_losses} times"
        return (
            f"the {self.name} was lost {times} within {limits.window_s:.0f} s and is left stopped; "
            f"the last time: {why}"
        )

    def _give_up(self, reason: str) -> None:
        logger.error("%s%s", reason, self._means)
        self._rest(Degraded(reason))
