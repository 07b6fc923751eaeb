"""All ranks of a replica as one: each turn goes to the rank that the router chooses.

    front ── RankPort ──▶ RankGroup ──▶ Router: where?
                              ├──▶ rank 0   (RankPort of one: its process, its restarts, its turns' ends)
                              └──▶ rank 1

Owns which rank has which turn. A rank that is lost ends its own turns and comes back by itself; the
others go on, and take what is new. One rank goes the same way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from keepwarm.backend.rank_port import Listener, RankEvent, RankPort, RankView, RankWatcher, refusal
from keepwarm.backend.router_feed import RouterFeed
from keepwarm.core.errors import InvariantBroken
from keepwarm.core.ids import RequestId
from keepwarm.core.rank_messages import Ended, Ready, Submit
from keepwarm.core.session import NO_SESSION, SessionKey
from keepwarm.sched.router import Router, RouterSettings

logger = logging.getLogger(__name__)


class RankGroup:
    """A `RankPort`."""

    def __init__(self, members: Sequence[RankPort], *, settings: RouterSettings | None = None) -> None:
        """`members` are ranks 0, 1, …, one each, and not started yet."""
        self._members = tuple(members)
        self._router = Router(len(members), settings)
        self._rank_of: dict[RequestId, RankPort] = {}
        self._is_closing = False
        self.feed = RouterFeed(self._router)
        """Whoever watches host memory on behalf of this group."""
        self.watch(self.feed)

    async def start(self) -> None:
        """All at once. One that cannot be loaded is the end of the others."""
        starts = [
            asyncio.create_task(member.start(), name=f"start of rank {rank}")
            for rank, member in enumerate(self._members)
        ]
        try:
            done, _ = await asyncio.wait(starts, return_when=asyncio.FIRST_EXCEPTION)
            for start in done:
                start.result()
        except BaseException:
            for start in starts:
                start.cancel()  # once: a second time would break off its cleaning up
            await asyncio.gather(*starts, return_exceptions=True)
            await self._close_members()
            raise

    @property
    def ready(self) -> Ready | None:
        """The least of what each can hold: a turn may come to any."""
        known = [member.ready for member in self._members if member.ready is not None]
        if len(known) < len(self._members):
            return None
        return msgspec.structs.replace(
            known[0],
            num_blocks=min(ready.num_blocks for ready in known),
            max_model_len=min(ready.max_model_len for ready in known),
        )

    def submit(self, turn: Submit, listener: Listener, *, session: SessionKey = NO_SESSION) -> None:
        if turn.request_id in self._rank_of:
            raise InvariantBroken(f"request {turn.request_id} was submitted twice")
        refused = refusal(self)
        if refused is not None:
            raise refused
        member = self._members[self._choose(turn, session)]

        def hear(event: RankEvent) -> None:
            self._router.hear(event)
            if isinstance(event, Ended):
                self._rank_of.pop(event.request_id, None)
            listener(event)

        self._rank_of[turn.request_id] = member
        try:
            member.submit(turn, hear, session=session)
        except BaseException:
            del self._rank_of[turn.request_id]
            self._router.hear(Ended(request_id=turn.request_id, reason="failed"))
            raise

    def abort(self, request_id: RequestId) -> None:
        member = self._rank_of.get(request_id)
        if member is not None:
            member.abort(request_id)

    def cut(self, request_id: RequestId, num_output_tokens: int) -> None:
        member = self._rank_of.get(request_id)
        if member is not None:
            member.cut(request_id, num_output_tokens)

    def unready_reason(self) -> str | None:
        """None while any rank serves."""
        if self._is_closing:
            return "the backend is shutting down"
        reasons = [member.unready_reason() for member in self._members]
        if None in reasons:
            return None
        return "; ".join(reason for reason in reasons if reason is not None)

    @property
    def ranks(self) -> tuple[RankView, ...]:
        return tuple(view for member in self._members for view in member.ranks)

    def watch(self, watcher: RankWatcher) -> None:
        for member in self._members:
            member.watch(watcher)

    async def close(self) -> None:
        self._is_closing = True
        await self._close_members()

    def _choose(self, turn: Submit, session: SessionKey) -> int:
        for view in self.ranks:
            self._router.set_can_promote(view.rank, view.stats is not None and view.stats.host_tier == "on")
        rank = self._router.route(turn, session)
        if rank is None:
            raise InvariantBroken("a rank is ready and the router knows of none")
        return rank

    async def _close_members(self) -> None:
        await asyncio.gather(*(member.close() for member in self._members))
