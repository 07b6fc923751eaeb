"""What each step computes, for one rank.

One plan, in order: turns that decode get their token, then reads in progress get chunks in the
order of admission, then waiting turns are admitted (`admission`), all under one token budget.

Knows no clock, device or text. One engine thread calls it: submit, abort and cut between steps;
then `plan`, and `commit` for each plan's result, in order.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from keepwarm.cache.prefix import EvictionReason, Holding, PrefixCache
from keepwarm.core.errors import (
    BadRequest,
    BadSetting,
    ContextTooLong,
    EngineLost,
    InvariantBroken,
    KeepwarmError,
    to_wire,
)
from keepwarm.core.hashing import BlockHasher
from keepwarm.core.host_tier import HostTier, HostTierLost
from keepwarm.core.ids import BlockHash, BlockId, BlockIds, RequestId, block_ids
from keepwarm.core.rank_messages import Admitted, CacheEvent, Ended, EndReason, RankStats, Submit, Tokens
from keepwarm.core.step import (
    BlockChange,
    ExecutorLimits,
    GrammarEnd,
    SequenceOutput,
    SequenceStart,
    SequenceWork,
    StepId,
    StepPlan,
    StepResult,
)
from keepwarm.sched.admission import Admission
from keepwarm.sched.cache_log import CacheLog
from keepwarm.sched.rank_stats import rank_stats
from keepwarm.sched.reading import Reading
from keepwarm.sched.room import Room
from keepwarm.sched.seats import Seats
from keepwarm.sched.settings import SchedulerSettings
from keepwarm.sched.tiers import Tiers
from keepwarm.sched.turn import Promotion, Turn
from keepwarm.sched.windows import window_changes, window_pool

__all__ = ["Scheduler", "SchedulerSettings"]


@dataclass(slots=True, kw_only=True)
class _InFlight:
    """One submitted plan, until its result is committed."""

    step_id: StepId
    works: list[tuple[Turn, SequenceWork]]
    drops: list[BlockId] = field(default_factory=list)
    """Replaced blocks that this plan may still read."""


class Scheduler:
    """Owns a rank's turns and its `PrefixCache`. See the module's text for the order of calls."""

    def __init__(
        self,
        *,
        limits: ExecutorLimits,
        hasher: BlockHasher,
        settings: SchedulerSettings,
        host: HostTier | HostTierLost | None = None,
    ) -> None:
        """`host`: L1, whose arena the executor has attached; or why there is none, where there should be."""
        if settings.max_num_batched_tokens < limits.max_num_seqs:
            raise BadSetting(
                f"--max-num-batched-tokens {settings.max_num_batched_tokens} is less than "
                f"--max-num-seqs {limits.max_num_seqs}: a step could not give each turn its token"
            )
        self._limits = limits
        self._hasher = hasher
        self._settings = settings
        self.cache = PrefixCache(
            limits.layout, limits.num_blocks, window_pool(limits, settings), on_evict=self._evicting
        )
        self._tiers = Tiers(
            host=host,
            cache=self.cache,
            settings=settings,
            on_promoted=self._end_promotion,
        )
        self._seats = Seats(limits.max_num_seqs)
        self._reading = Reading()
        self._admission = Admission(
            cache=self.cache,
            layout=limits.layout,
            seats=self._seats,
            reading=self._reading,
            tiers=self._tiers,
            settings=settings,
        )
        self._room = Room(
            cache=self.cache,
            seats=self._seats,
            tiers=self._tiers,
            settings=settings,
            preempt=self._preempt,
        )
        self._turns: dict[RequestId, Turn] = {}
        self._in_flight: deque[_InFlight] = deque()
        self._last_step = 0
        self._changes: list[BlockChange] = []
        self._events: list[Admitted | Tokens | Ended] = []
        self._cache_log = CacheLog()
        self._totals = Counter[str]()

    # -- what the front says -------------------------------------------------------------------

    def submit(self, turn: Submit) -> None:
        """Queue a turn. One that can never fit ends as failed at once."""
        if turn.request_id in self._turns:
            raise InvariantBroken(f"request id {turn.request_id!r} is already open")
        new = Turn.from_submit(turn, uses_cache=turn.use_cache and self._settings.prefix_cache)
        self._turns[new.request_id] = new
        if new.num_prompt == 0 or turn.max_output_tokens < 1:
            self._end(new, "failed", InvariantBroken("a turn needs a prompt and room for an output token"))
            return
        limit = min(self._limits.max_model_len, self._limits.num_blocks * self._limits.layout.block_size)
        if new.num_prompt + new.max_output_tokens > limit:
            tokens = new.num_prompt + new.max_output_tokens
            self._end(new, "failed", ContextTooLong(tokens=tokens, limit=limit))
            return
        self._totals["prompt_tokens"] += new.num_prompt
        self._totals["constrained_turns"] += new.grammar is not None
        self._admission.queue(new)

    def abort(self, request_id: RequestId) -> None:
        """End a turn whose client went away. Ids that are unknown or ended are ignored."""
        turn = self._turns.get(request_id)
        if turn is not None:
            self._end(turn, "aborted")

    def cut(self, request_id: RequestId, num_output_tokens: int) -> None:
        """End a turn whose text held a stop string after `num_output_tokens`."""
        turn = self._turns.get(request_id)
        if turn is not None:
            self._totals["output_tokens"] -= max(0, len(turn.output) - num_output_tokens)
            self._end(turn, "stop")

    def end_all(self, reason: EndReason, error: KeepwarmError | None = None) -> None:
        """End every open turn, at shutdown or after a failed step."""
        for turn in list(self._turns.values()):
            self._end(turn, reason, error)

    # -- one step ------------------------------------------------------------------------------

    def plan(self, now_s: float) -> StepPlan:
        """The next step; empty (`works == ()`) when nothing can be computed now.

        Every plan must be submitted and its result committed, empty ones too: they carry what
        the executor must forget. `now_s` is a monotonic clock's; policies order by it.
        """
        self._last_step += 1
        budget = self._settings.max_num_batched_tokens
        works: list[tuple[Turn, SequenceWork]] = []
        num_preempted = self._totals["preemptions"]
        for turn in self._in_planning_order():
            if budget == 0:
                break
            budget -= self._plan_turn(turn, budget, works)
        starts: list[SequenceStart] = []
        if self._totals["preemptions"] == num_preempted:
            self._admit(now_s, budget, works, starts)
        copies = self._tiers.plan()
        plan = StepPlan(
            step_id=StepId(self._last_step),
            ended=self._seats.take_ended(),
            starts=tuple(starts),
            changes=tuple(self._changes),
            works=tuple(work for _turn, work in works),
            copies=copies,
            awaits_copy=self._only_copies_remain(works),
        )
        self._changes = []
        self._in_flight.append(_InFlight(step_id=plan.step_id, works=works))
        return plan

    def _only_copies_remain(self, works: list[tuple[Turn, SequenceWork]]) -> bool:
        """Whether nothing can be computed before some copy has ended."""
        is_computing = bool(works) or any(step.works for step in self._in_flight)
        return bool(self._tiers.num_in_flight) and not is_computing

    def commit(self, result: StepResult) -> None:
        """Take in the oldest plan's result: copies, progress, published blocks, tokens, ends."""
        if not self._in_flight or self._in_flight[0].step_id != result.step_id:
            raise InvariantBroken(f"result of step {result.step_id}, which is not the oldest in flight")
        step = self._in_flight.popleft()
        self._totals["steps"] += 1
        self._measure(step, result)
        self._tiers.commit(result.copies)
        outputs = {output.slot: output for output in result.outputs}
        for turn, work in step.works:
            turn.num_in_flight -= 1
            turn.num_computed = work.end
            self._totals["computed_tokens"] += work.end - work.start
            if work.sample:
                turn.num_sampling -= 1
            if turn.has_ended:
                continue  # what it sampled meanwhile, nobody waits for
            self._publish(turn)
            if turn.holding is not None:
                self.cache.advance(turn.holding, turn.num_computed)
            if work.sample:
                self._take_output(turn, outputs[work.slot])
        for block in step.drops:
            self.cache.drop(block)
        self._let_leave()

    def take_cache_events(self) -> tuple[CacheEvent, ...]:
        """What became of named blocks since the last call, in order."""
        return self._cache_log.take()

    def take_events(self) -> tuple[Admitted | Tokens | Ended, ...]:
        """What the front must hear since the last call, in order."""
        events, self._events = tuple(self._events), []
        return events

    @property
    def has_events(self) -> bool:
        """`take_events` would return something."""
        return bool(self._events)

    @property
    def has_work(self) -> bool:
        """Something waits, runs, is copied or in flight, or somebody must still be told of an end."""
        open_work = self._turns or self._in_flight or self._seats.leaving or self.has_copies
        return bool(open_work or self._seats.has_ended or self._events)

    @property
    def has_copies(self) -> bool:
        """Blocks are being copied, or will be by the next plans."""
        return self._tiers.has_copies

    # -- planning ------------------------------------------------------------------------------

    def _in_planning_order(self) -> list[Turn]:
        """Decodes first: a turn that needs one token is never held up by a long read."""
        ready = [turn for turn in self._seats.running if turn.num_unplanned > 0]
        return [t for t in ready if t.num_unplanned == 1] + [t for t in ready if t.num_unplanned > 1]

    def _plan_turn(self, turn: Turn, budget: int, works: list[tuple[Turn, SequenceWork]]) -> int:
        """Give one running turn its share of the step; returns the tokens it takes."""
        if turn.slot is None or turn.holding is None:
            return 0  # preempted earlier in this plan
        start = turn.num_planned
        end = start + min(turn.num_unplanned, budget)
        changes = self._room.make(turn, end, works)
        if changes is None:
            return 0
        self._changes += changes
        self._changes += window_changes(self.cache, turn, end)
        sample = end == turn.num_known
        works.append((turn, SequenceWork(slot=turn.slot, start=start, end=end, sample=sample)))
        turn.num_planned = end
        turn.num_sampling += sample
        turn.num_in_flight += 1
        return end - start

    def _preempt(self, turn: Turn) -> None:
        """Back to the head of the queue. What it computed stays cached until it is evicted."""
        self._totals["preemptions"] += 1
        self._leave(turn)

    def _admit(
        self,
        now_s: float,
        budget: int,
        works: list[tuple[Turn, SequenceWork]],
        starts: list[SequenceStart],
    ) -> None:
        while budget > 0 and (turn := self._admission.start_next(now_s)) is not None:
            starts.append(self._start_of(turn))
            if turn.promotion is None:
                self._tell_admitted(turn)
                budget -= self._plan_turn(turn, budget, works)
        self._admission.end_round()

    def _start_of(self, turn: Turn) -> SequenceStart:
        if turn.slot is None or turn.holding is None:
            raise InvariantBroken(f"{turn.request_id} starts without a slot or blocks")
        window = turn.holding.window
        return SequenceStart(
            slot=turn.slot,
            request_id=turn.request_id,
            tokens=turn.all_tokens(),
            num_prompt_tokens=turn.num_prompt,
            blocks=turn.holding.blocks.copy(),  # ours changes when a block is replaced
            sampling=turn.sampling,
            grammar=turn.grammar,
            window_first=0 if window is None else window.first,
            window_blocks=None if window is None else block_ids(window.blocks),
        )

    def _tell_admitted(self, turn: Turn, promoted: Promotion | None = None) -> None:
        """Once a request, however often it is preempted."""
        if turn.was_admitted:
            return
        turn.was_admitted = True
        block_size = self._limits.layout.block_size
        admitted = Admitted(
            request_id=turn.request_id,
            cached_tokens=turn.num_computed,
            host_tokens=promoted.num_blocks * block_size if promoted else 0,
            disk_tokens=promoted.lease.num_from_disk * block_size if promoted else 0,
        )
        self._totals["cached_tokens"] += admitted.cached_tokens
        self._totals["host_tokens"] += admitted.host_tokens
        self._totals["disk_tokens"] += admitted.disk_tokens
        self._events.append(admitted)

    # -- committing ----------------------------------------------------------------------------

    def _measure(self, step: _InFlight, result: StepResult) -> None:
        sizes = [work.end - work.start for _turn, work in step.works]
        self._tiers.costs.computed(
            num_tokens=sum(sizes),
            num_read=sum(size for size in sizes if size > 1),
            compute_s=result.compute_s,
        )

    def _end_promotion(self, turn: Turn, promotion: Promotion, may_be_read: bool) -> None:
        """Its blocks are somebody's computed ones, or still to be computed."""
        if may_be_read and turn.holding is not None:
            turn.num_computed = turn.num_planned = promotion.end_block * self._limits.layout.block_size
            self._publish(turn, reason="promoted")
            self._tiers.demotions.clean.add(turn.holding.blocks[promotion.first_block : promotion.end_block])
        if turn.slot is not None:
            self._tell_admitted(turn, promotion if may_be_read else None)

    def _evicting(self, blocks: BlockIds, names: list[BlockHash], reason: EvictionReason) -> None:
        self._tiers.demotions.evicting(blocks, copy=reason == "room")
        self._cache_log.evicted(names, reason)

    def _publish(self, turn: Turn, *, reason: Literal["computed", "promoted"] = "computed") -> None:
        """Name the blocks that are full of computed tokens, so that others may share them."""
        holding = turn.holding
        if not turn.uses_cache or holding is None:
            return
        num_full = turn.num_computed // self._limits.layout.block_size
        if num_full <= holding.num_named:
            return
        turn.name_blocks(num_full, self._hasher)
        first = holding.num_named
        names = turn.names[first:num_full]
        replacements = self.cache.publish(holding, names)
        first_new = first + len(replacements)
        parent = turn.names[first_new - 1] if first_new else turn.root
        self._cache_log.stored(parent, names[len(replacements) :], reason)
        for replacement in replacements:
            self._drop_later(replacement.old)
        if turn.slot is None:
            return  # preempted while in flight: the executor has forgotten it
        self._reading.end(names)
        self._changes += [
            BlockChange(slot=turn.slot, index=replacement.index, block=replacement.new)
            for replacement in replacements
        ]

    def _drop_later(self, block: BlockId) -> None:
        """Release a block once no step in flight can read it."""
        if self._in_flight:
            self._in_flight[-1].drops.append(block)
        else:
            self.cache.drop(block)

    def _take_output(self, turn: Turn, output: SequenceOutput) -> None:
        """Append sampled tokens, tell the front, end the turn at a stop token or its limit."""
        kept: list[int] = []
        reason: EndReason | None = None
        for token in output.tokens:
            if token in turn.stop_tokens:
                reason = "stop"
                break
            kept.append(token)
            turn.output.append(token)
            if len(turn.output) >= turn.max_output_tokens:
                reason = "length"
                break
        if kept:
            self._totals["output_tokens"] += len(kept)
            logprobs = output.logprobs[: len(kept)]
            self._events.append(Tokens(request_id=turn.request_id, tokens=tuple(kept), logprobs=logprobs))
        if reason is not None:
            self._end(turn, reason)
        elif output.grammar_end is not None:
            self._end_by_grammar(turn, output.grammar_end)

    def _end_by_grammar(self, turn: Turn, end: GrammarEnd) -> None:
        if end == "complete":
            self._end(turn, "stop")
            return
        field = (turn.grammar and turn.grammar.field) or "grammar"
        why = (
            f"{field}: after {len(turn.output)} tokens no token of this model can continue the form it forces"
        )
        self._end(turn, "failed", BadRequest(why))

    # -- ends ----------------------------------------------------------------------------------

    def _end(self, turn: Turn, reason: EndReason, error: KeepwarmError | None = None) -> None:
        """The one terminal event; memory follows once nothing in flight names the turn."""
        del self._turns[turn.request_id]
        turn.has_ended = True
        if reason == "failed" and error is None:
            error = EngineLost("the engine failed")
        wire = None if error is None else to_wire(error)
        self._events.append(Ended(request_id=turn.request_id, reason=reason, error=wire))
        if turn.slot is not None:
            self._leave(turn)
        else:
            self._admission.remove(turn)

    def _leave(self, turn: Turn) -> None:
        """Give the slot back now, the blocks when no step in flight names them."""
        if turn.holding is None:
            raise InvariantBroken(f"{turn.request_id} leaves without blocks")
        self._changes = [change for change in self._changes if change.slot != turn.slot]
        self._reading.end(turn.names[turn.holding.num_named :])
        self._seats.leave(turn)
        self._let_leave()

    def _let_leave(self) -> None:
        for turn in self._seats.pop_left():
            if turn.holding is not None and not self._is_kept(turn, turn.holding):
                self.cache.release(turn.holding)
            turn.restart()
            if not turn.has_ended:
                self._admission.queue_first(turn)

    def _is_kept(self, turn: Turn, holding: Holding) -> bool:
        """Whether its blocks are held on, to be copied down. Those of a preempted turn are wanted now."""
        at_turn_end = turn.has_ended and self._settings.demote == "turn_end"
        return at_turn_end and self._tiers.demotions.keep(holding, turn.names)

    # -- looking in ----------------------------------------------------------------------------

    def stats(self) -> RankStats:
        """Counters since start and gauges now."""
        return rank_stats(
            self._totals,
            cache=self.cache,
            tiers=self._tiers,
            waiting=len(self._admission),
            running=len(self._seats.running),
        )

    def check_integrity(self) -> None:
        """Raise `InvariantBroken` unless every block, reference and slot is accounted for."""
        self.cache.check(self._references())
        if self.cache.windows is not None:
            holdings = [turn.holding for turn in (*self._seats.running, *self._seats.leaving)]
            self.cache.windows.check([held.window for held in holdings if held and held.window])
        self._seats.check()
        if not self._seats.running and not self._seats.leaving and len(self._reading):
            raise InvariantBroken(f"{len(self._reading)} names are announced and nobody reads them")

    def _references(self) -> BlockIds:
        turns = (*self._seats.running, *self._seats.leaving)
        holdings = [*(turn.holding for turn in turns), *self._tiers.demotions.holdings()]
        drops = [block for step in self._in_flight for block in step.drops]
        return np.concatenate([block_ids(drops), *(holding.blocks for holding in holdings if holding)])
