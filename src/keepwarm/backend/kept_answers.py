"""The ids of generated answers, kept beside the KV they name, so that a front that is restarted hits
what was written for the one before it.

Owns the connection to whoever keeps them (`keepwarm hostcache`) and what it is told. An answer that
could not be kept costs no turn: only a later front may have to read it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from keepwarm.chat.answer_records import AnswerRecords
from keepwarm.chat.replay import RememberedAnswer, ReplayMemo
from keepwarm.core.host_tier import HostTierLost
from keepwarm.core.ids import TenantId

logger = logging.getLogger(__name__)

_RECONNECT_S = 5.0
_CLOSE_LIMIT_S = 2.0


class RecordsLink(Protocol):
    """A connection to who keeps records. Used by one event loop."""

    def put_record(self, key: bytes, value: bytes) -> bool:
        """Have it kept; never waits. False: it is not, as its owner is gone or does not keep up."""

    async def all_records(self) -> list[tuple[bytes, bytes]]:
        """Those that are kept, oldest first. Raises `HostTierLost`."""

    async def close(self) -> None:
        """What was put is sent first."""


class KeptAnswers:
    """`memo` is the front's memory of answers; whatever it is given is kept outside as well."""

    def __init__(
        self,
        records: AnswerRecords,
        connect: Callable[[], Awaitable[RecordsLink]],
        *,
        reconnect_s: float = _RECONNECT_S,
    ) -> None:
        """`connect` raises `HostTierLost`."""
        self.memo = ReplayMemo(on_new=self._keep)
        self._records = records
        self._connect = connect
        self._reconnect_s = reconnect_s
        self._link: RecordsLink | None = None
        self._reconnecting: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Remember what an earlier front left. Nobody there is no error: it is looked for again."""
        try:
            self._link = await self._connect()
            found = await self._link.all_records()
        except HostTierLost as error:
            self._lose(f"answers of an earlier start are not known: {error}")
            return
        answers = [self._records.decode(value) for _key, value in found]
        for answer in answers:
            if answer is not None:
                self.memo.restore(*answer)
        num_known = sum(answer is not None for answer in answers)
        if found:
            logger.info("%d answers of an earlier start are known (of %d kept)", num_known, len(found))

    async def close(self) -> None:
        """What was told is on its way; nothing is kept any more."""
        if self._reconnecting is not None:
            self._reconnecting.cancel()
            await asyncio.gather(self._reconnecting, return_exceptions=True)
        await self._close_link()

    def _keep(self, tenant: TenantId, key: bytes, answer: RememberedAnswer) -> None:
        if self._link is None:
            return  # it is told all of them once it is there
        if not self._link.put_record(*self._records.encode(tenant, key, answer)):
            self._lose("answers are not kept for a restart of the front: their keeper takes none")

    def _lose(self, why: str) -> None:
        if self._reconnecting is None or self._reconnecting.done():
            logger.warning("%s", why)
            self._reconnecting = asyncio.create_task(self._reconnect(), name="keeper of answers")

    async def _reconnect(self) -> None:
        await self._close_link()
        while self._link is None:
            await asyncio.sleep(self._reconnect_s)
            with contextlib.suppress(HostTierLost):
                self._link = await self._connect()
        for answer in self.memo.all():  # a new keeper has nothing, and another name for the same is none
            if not self._link.put_record(*self._records.encode(*answer)):
                return  # the next answer notices as well
        logger.info("answers are kept for a restart of the front again")

    async def _close_link(self) -> None:
        link, self._link = self._link, None
        if link is None:
            return
        with contextlib.suppress(HostTierLost, OSError, TimeoutError):
            async with asyncio.timeout(_CLOSE_LIMIT_S):
                await link.close()
