"""Drives a real `Scheduler` over a `ScriptedExecutor`, as a rank does, without processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from keepwarm.core.hashing import BlockHasher, join_hashes, root_hash
from keepwarm.core.host_tier import HostArena, HostTier
from keepwarm.core.ids import RequestId, TenantId, token_ids
from keepwarm.core.layout import CacheLayout, LayerGroup
from keepwarm.core.rank_messages import Admitted, CacheEvent, Ended, Submit, Tokens
from keepwarm.core.sampling import GREEDY
from keepwarm.core.step import ExecutorLimits, StepPlan
from keepwarm.engine.scripted import ScriptedExecutor
from keepwarm.sched.scheduler import Scheduler, SchedulerSettings

KEY = bytes(32)
BLOCK_SIZE = 4
STOP_TOKEN = 7


def make_limits(
    *,
    num_blocks: int = 64,
    max_num_seqs: int = 4,
    max_model_len: int = 128,
    window_tokens: int | None = None,
    num_window_blocks: int = 0,
) -> ExecutorLimits:
    groups = [LayerGroup(kind="full", num_layers=1, window_tokens=None, bytes_per_token=8)]
    if window_tokens is not None:
        groups.append(
            LayerGroup(kind="window", num_layers=5, window_tokens=window_tokens, bytes_per_token=40)
        )
    return ExecutorLimits(
        layout=CacheLayout(block_size=BLOCK_SIZE, groups=tuple(groups)),
        num_window_blocks=num_window_blocks,
        num_blocks=num_blocks,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        vocab_size=32,
    )


def make_submit(
    name: str,
    tokens: Sequence[int],
    *,
    max_output_tokens: int = 8,
    tenant: str = "default",
    use_cache: bool = True,
    stop_tokens: tuple[int, ...] = (),
) -> Submit:
    hasher = BlockHasher(key=KEY, block_size=BLOCK_SIZE)
    root = root_hash(KEY, TenantId(tenant))
    ids = token_ids(tokens)
    return Submit(
        request_id=RequestId(name),
        tokens=ids.tobytes(),
        block_hashes=join_hashes(hasher.extend(root, ids)),
        root=root,
        max_output_tokens=max_output_tokens,
        stop_tokens=stop_tokens,
        sampling=GREEDY,
        use_cache=use_cache,
    )


@dataclass
class Rank:
    """One rank under a virtual clock; `depth` steps may be in flight."""

    limits: ExecutorLimits = field(default_factory=make_limits)
    settings: SchedulerSettings = field(
        default_factory=lambda: SchedulerSettings(max_num_batched_tokens=16, output_reserve_tokens=8)
    )
    depth: int = 1
    host: HostTier | None = None
    arena: HostArena | None = None
    copy_steps: int = 0
    now_s: float = 0.0
    num_pending: int = 0
    output: dict[str, list[int]] = field(default_factory=dict)
    ends: dict[str, list[str]] = field(default_factory=dict)
    cached: dict[str, int] = field(default_factory=dict)
    plans: list[StepPlan] = field(default_factory=list)
    from_host: dict[str, int] = field(default_factory=dict)
    cache_events: list[CacheEvent] = field(default_factory=list)

    def __post_init__(self) -> None:
        hasher = BlockHasher(key=KEY, block_size=self.limits.layout.block_size)
        self.scheduler = Scheduler(limits=self.limits, hasher=hasher, settings=self.settings, host=self.host)
        self.executor = ScriptedExecutor(limits=self.limits, copy_steps=self.copy_steps)
        if self.arena is not None:
            self.executor.attach_arena(self.arena)

    def submit(self, name: str, tokens: Sequence[int], **options: object) -> None:
        self.scheduler.submit(make_submit(name, tokens, **options))  # type: ignore[arg-type]
        self._hear()

    def step(self) -> None:
        """One plan, and its result once `depth` steps are in flight."""
        self.now_s += 1.0
        plan = self.scheduler.plan(self.now_s)
        self.plans.append(plan)
        self.executor.submit(plan)
        self.num_pending += 1
        if self.num_pending >= self.depth:
            self.collect()
        self._hear()

    def collect(self) -> None:
        self.scheduler.commit(self.executor.collect())
        self.num_pending -= 1
        self._hear()

    def run(self, max_steps: int = 5_000) -> None:
        """Until nothing is left to do; an endless loop is a failure."""
        for _ in range(max_steps):
            if not self.scheduler.has_work:
                break
            self.step()
            while self.num_pending and not self.plans[-1].works:
                self.collect()
        while self.num_pending:
            self.collect()
        assert not self.scheduler.has_work, "the scheduler never came to rest"
        self.scheduler.check_integrity()

    def ask(self, name: str, tokens: Sequence[int], **options: object) -> list[int]:
        """One turn, alone, to its end."""
        self.submit(name, tokens, **options)
        self.run()
        return self.output[name]

    def _hear(self) -> None:
        self.cache_events += self.scheduler.take_cache_events()
        for event in self.scheduler.take_events():
            match event:
                case Admitted(request_id=name, cached_tokens=cached, host_tokens=from_host):
                    assert name not in self.cached, f"{name} was admitted twice"
                    self.cached[name] = cached
                    self.from_host[name] = from_host
                case Tokens(request_id=name, tokens=tokens):
                    assert name not in self.ends, f"{name} got tokens after its end"
                    self.output.setdefault(name, []).extend(tokens)
                case Ended(request_id=name, reason=reason):
                    self.ends.setdefault(name, []).append(reason)
                    self.output.setdefault(name, [])


def expected_output(limits: ExecutorLimits, submit: Submit) -> list[int]:
    """What the scripted executor says to a prompt when nothing runs beside it and nothing is cached."""
    tokens = np.frombuffer(submit.tokens, dtype=np.int32).tolist()
    lonely = Rank(limits=limits, settings=SchedulerSettings(max_num_batched_tokens=4096, prefix_cache=False))
    return lonely.ask(
        "lonely", tokens, max_output_tokens=submit.max_output_tokens, stop_tokens=submit.stop_tokens
    )
