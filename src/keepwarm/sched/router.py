"""Which rank takes a turn: the one where it waits and reads least.

Owns what the front believes of its ranks: the blocks they hold, from their own events, and the work
they were given and have not said to be done. It moves nothing and asks nobody; a wrong belief costs
time, never an answer.

    cost of a rank = prompt tokens it still has to read + those this turn would have to read there

so a turn goes where its prefix is, unless the queue there is longer than reading it again elsewhere.
Where two ranks cost the same, a session stays where it was, and a subagent goes to its parent.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from keepwarm.core.errors import InvariantBroken
from keepwarm.core.hashing import BlockNames
from keepwarm.core.ids import BlockHash, RequestId
from keepwarm.core.rank_messages import Admitted, CacheEvent, Ended, Submit, Tokens
from keepwarm.core.session import NO_SESSION, SessionKey

_TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSettings:
    """Costs are in tokens: what it takes to read so many."""

    tie_tokens: int = 512
    """Costs that differ by no more are the same; a block at the least. One step's chunk by default."""
    promote_cost: float = 0.1
    """What a token of host memory costs to copy up, of what it costs to read."""
    crowding: float = 0.5
    """A session that has no rank yet also pays for the sessions of a rank beyond those of the
    emptiest: this part of their tokens. Else all that share a system prompt would meet on one."""
    hot_factor: float = 2.0
    hot_turns: int = 8
    hot_tokens: int = 262_144
    """A rank is hot, and gets nothing while another is not, where its open turns or its tokens to read
    are more than `hot_factor` times the fewest of any rank, plus this many."""
    max_sessions: int = 65_536
    """Whose rank is remembered; the least recently used are forgotten first."""
    max_sessions_tokens: int = 4
    """They are also forgotten where together they are so many times the device memory of all ranks:
    of an older one nothing is left there."""
    max_host_names: int = 1 << 20
    """As many as host memory has slots at most: a set with gaps could not be searched."""


@dataclass(slots=True, eq=False)
class _Rank:
    """One rank, as it is believed to be."""

    number: int
    is_serving: bool = False
    can_promote: bool = False
    block_size: int = 1
    num_blocks: int = 0
    names: set[BlockHash] = field(default_factory=set)
    num_open: int = 0
    pending_tokens: int = 0
    """What its open turns still have to read."""
    home_tokens: int = 0
    """The last prompts of the sessions that are at home here."""

    @property
    def capacity_tokens(self) -> int:
        return self.num_blocks * self.block_size


@dataclass(slots=True, eq=False)
class _OpenTurn:
    """A turn between `route` and its end."""

    rank: _Rank
    num_prompt_tokens: int
    to_read: int
    """Of the prompt, as far as is known."""

    def set_to_read(self, num_tokens: int) -> None:
        self.rank.pending_tokens += num_tokens - self.to_read
        self.to_read = num_tokens


@dataclass(slots=True)
class _Home:
    rank: _Rank
    num_tokens: int


SessionName = tuple[bytes, SessionKey]
"""Session ids are clients' words, so they are told apart by the tenant, which has a root of its own."""


class Router:
    """All calls come from one thread. No rank serves before `rank_serves` is called for it."""

    def __init__(self, num_ranks: int, settings: RouterSettings | None = None) -> None:
        self._settings = settings or RouterSettings()
        self._ranks = [_Rank(number) for number in range(num_ranks)]
        self._host_names: set[BlockHash] = set()
        self._open: dict[RequestId, _OpenTurn] = {}
        self._homes: OrderedDict[SessionName, _Home] = OrderedDict()

    # -- what becomes of ranks and blocks ------------------------------------------------------

    def rank_serves(self, rank: int, *, block_size: int, num_blocks: int) -> None:
        """It takes turns from now on, and its device memory is empty."""
        self.forget(rank)
        state = self._ranks[rank]
        state.is_serving, state.block_size, state.num_blocks = True, block_size, num_blocks

    def forget(self, rank: int) -> None:
        """It is gone, with its blocks, its turns and its sessions; it gets nothing until it serves."""
        gone = self._ranks[rank]
        for request_id in [request_id for request_id, turn in self._open.items() if turn.rank is gone]:
            del self._open[request_id]
        for name in [name for name, home in self._homes.items() if home.rank is gone]:
            del self._homes[name]
        self._ranks[rank] = _Rank(rank)

    def set_can_promote(self, rank: int, can_promote: bool) -> None:
        """Whether it copies blocks up from host memory now."""
        self._ranks[rank].can_promote = can_promote

    def take(self, rank: int, events: Iterable[CacheEvent]) -> None:
        """What a rank says of its device memory; its word on what all share is not heard here."""
        state = self._ranks[rank]
        for event in events:
            if event.tier == "l0" and state.is_serving:
                _apply(event, state.names, limit=state.num_blocks)

    def take_host(self, events: Iterable[CacheEvent]) -> None:
        """What whoever keeps host memory says of it; what is on disk alone counts as not there."""
        for event in events:
            if event.tier == "l1":
                _apply(event, self._host_names, limit=self._settings.max_host_names)

    def forget_host(self) -> None:
        """Host memory is gone, with all that was in it."""
        self._host_names.clear()

    # -- turns ---------------------------------------------------------------------------------

    def route(self, turn: Submit, session: SessionKey = NO_SESSION) -> int | None:
        """Choose a rank for a turn and count it there. None: no rank serves.

        Whoever calls this passes what the rank says of the turn to `hear`, its `Ended` included.
        Raises `InvariantBroken` where it is open already.
        """
        if turn.request_id in self._open:
            raise InvariantBroken(f"request {turn.request_id} was routed twice")
        home = self._home_of(turn.root, session)
        costs = self._costs(turn, is_new=home is None)
        if not costs:
            return None
        chosen = self._choose(costs, None if home is None else home.rank)
        num_tokens = len(turn.tokens) // _TOKEN_BYTES
        self._open[turn.request_id] = opened = _OpenTurn(chosen, num_tokens, 0)
        opened.set_to_read(costs[chosen.number].own)
        chosen.num_open += 1
        if session.session:
            self._settle((turn.root, session), chosen, num_tokens)
        return chosen.number

    def hear(self, event: Admitted | Tokens | Ended) -> None:
        """A rank said this of a turn that was routed to it; of others it is ignored."""
        turn = self._open.get(event.request_id)
        if turn is None:
            return
        match event:
            case Admitted():
                turn.set_to_read(turn.num_prompt_tokens - event.cached_tokens)
            case Tokens():  # so its prompt is read
                turn.set_to_read(0)
            case Ended():
                turn.set_to_read(0)
                turn.rank.num_open -= 1
                del self._open[event.request_id]
            case _:
                assert_never(event)

    def uncached_tokens(self, turn: Submit, rank: int) -> int:
        """What the turn would have to read there, in tokens; those in host memory count in part."""
        return self._own_cost(self._ranks[rank], turn, _names_of(turn))

    @property
    def num_open(self) -> int:
        """Turns that were routed and have not ended."""
        return len(self._open)

    @property
    def num_sessions(self) -> int:
        """Whose rank is remembered."""
        return len(self._homes)

    # -- choosing ------------------------------------------------------------------------------

    def _costs(self, turn: Submit, *, is_new: bool) -> dict[int, _Cost]:
        """Of every rank that serves, by its number."""
        serving = [rank for rank in self._ranks if rank.is_serving]
        names = _names_of(turn)
        least_home_tokens = min((rank.home_tokens for rank in serving), default=0)
        costs: dict[int, _Cost] = {}
        for rank in serving:
            own = self._own_cost(rank, turn, names)
            crowd = self._settings.crowding * (rank.home_tokens - least_home_tokens) if is_new else 0.0
            costs[rank.number] = _Cost(own=own, total=rank.pending_tokens + own + crowd)
        return costs

    def _own_cost(self, rank: _Rank, turn: Submit, names: Sequence[BlockHash]) -> int:
        num_tokens = len(turn.tokens) // _TOKEN_BYTES
        num_usable = min(len(names), (num_tokens - 1) // rank.block_size)  # the last token is always read
        num_on_device = _num_known(names, num_usable, rank.names)
        uncached = num_tokens - num_on_device * rank.block_size
        if not rank.can_promote:
            return uncached
        num_below = max(0, _num_known(names, num_usable, self._host_names) - num_on_device)
        saved = num_below * rank.block_size * (1.0 - self._settings.promote_cost)
        return uncached - int(saved)

    def _choose(self, costs: dict[int, _Cost], home: _Rank | None) -> _Rank:
        candidates = self._cool([self._ranks[number] for number in costs])
        least = min(costs[rank.number].total for rank in candidates)
        tie_tokens = max(self._settings.tie_tokens, candidates[0].block_size)
        tied = [rank for rank in candidates if costs[rank.number].total <= least + tie_tokens]
        if home in tied and not _has_a_roomier_one(home, tied):
            return home
        return min(tied, key=lambda rank: (rank.num_open, rank.home_tokens, len(rank.names), rank.number))

    def _cool(self, ranks: list[_Rank]) -> list[_Rank]:
        """Those that are not hot, or all where each is hot in its way."""
        settings = self._settings
        most_turns = settings.hot_factor * min(rank.num_open for rank in ranks) + settings.hot_turns
        most_tokens = settings.hot_factor * min(rank.pending_tokens for rank in ranks) + settings.hot_tokens
        cool = [rank for rank in ranks if rank.num_open <= most_turns and rank.pending_tokens <= most_tokens]
        return cool or ranks

    # -- sessions ------------------------------------------------------------------------------

    def _home_of(self, root: bytes, session: SessionKey) -> _Home | None:
        """Where it was last, or, for a subagent that was nowhere yet, where its parent was."""
        if not session.session:
            return None
        parent = SessionKey(session=session.session)
        return self._homes.get((root, session)) or self._homes.get((root, parent))

    def _settle(self, name: SessionName, rank: _Rank, num_tokens: int) -> None:
        self._leave_home(self._homes.pop(name, None))
        self._homes[name] = _Home(rank, num_tokens)
        rank.home_tokens += num_tokens
        most_tokens = self._settings.max_sessions_tokens * sum(rank.capacity_tokens for rank in self._ranks)
        while len(self._homes) > 1 and (
            len(self._homes) > self._settings.max_sessions
            or sum(rank.home_tokens for rank in self._ranks) > most_tokens
        ):
            self._leave_home(self._homes.popitem(last=False)[1])

    def _leave_home(self, home: _Home | None) -> None:
        if home is not None:
            home.rank.home_tokens -= home.num_tokens

    # -- looking in ----------------------------------------------------------------------------

    def check(self) -> None:
        """Raise `InvariantBroken` unless the sums agree with what they are sums of. O(everything)."""
        for rank in self._ranks:
            turns = [turn for turn in self._open.values() if turn.rank is rank]
            if (rank.num_open, rank.pending_tokens) != (len(turns), sum(turn.to_read for turn in turns)):
                raise InvariantBroken(f"rank {rank.number}: its open turns are miscounted")
            homes = [home.num_tokens for home in self._homes.values() if home.rank is rank]
            if rank.home_tokens != sum(homes):
                raise InvariantBroken(f"rank {rank.number}: its sessions' tokens are miscounted")
            if len(rank.names) > rank.num_blocks:
                raise InvariantBroken(f"rank {rank.number}: more names than blocks")
            if not rank.is_serving and (rank.names or turns or homes):
                raise InvariantBroken(f"rank {rank.number}: something is left of a rank that is gone")
        if sum(rank.num_open for rank in self._ranks) != len(self._open):
            raise InvariantBroken("a turn is open on a rank that is forgotten")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cost:
    own: int
    total: float


def _apply(event: CacheEvent, names: set[BlockHash], *, limit: int) -> None:
    told = BlockNames(event.names)[:]
    if event.kind == "evicted":
        names.difference_update(told)
        return
    names.update(told)
    if len(names) > limit:  # then somebody has not told all, and a belief without end helps nobody
        names.clear()


def _names_of(turn: Submit) -> Sequence[BlockHash]:
    return BlockNames(turn.block_hashes) if turn.use_cache else ()


def _num_known(names: Sequence[BlockHash], limit: int, known: Collection[BlockHash]) -> int:
    """How many of names[:limit] are known; the known ones come first (see `cache.prefix`). O(log limit)."""
    return bisect_left(range(limit), True, key=lambda index: names[index] not in known)


def _has_a_roomier_one(home: _Rank, tied: list[_Rank]) -> bool:
    """Whether the sessions of `home` do not fit its device memory, and those of another would."""
    if home.home_tokens <= home.capacity_tokens:
        return False
    return any(rank.home_tokens < rank.capacity_tokens for rank in tied)
