"""A warm turn's Python does not grow with the conversation, from its message to its blocks' release."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import msgspec
import pytest

from keepwarm.cache.host_index import Owner
from keepwarm.core.rank_messages import Submit
from keepwarm.engine.scripted import ScriptedExecutor
from keepwarm.sched.scheduler import SchedulerSettings
from tests.sched.driver import BLOCK_SIZE, Rank, make_limits, make_submit
from tests.sched.tiers import Host

NUM_NEW_BLOCKS = 5
decode = msgspec.msgpack.Decoder(Submit).decode


def count_opcodes(job: Callable[[], None]) -> int:
    """Bytecode instructions that a call executes, those of what it calls included."""
    num_opcodes = 0

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal num_opcodes
        frame.f_trace_opcodes = True
        num_opcodes += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        job()
    finally:
        sys.settrace(before)
    return num_opcodes


def opcodes_of_a_warm_turn(num_blocks: int, *, with_host: bool) -> int:
    limits = make_limits(num_blocks=2 * num_blocks, max_model_len=2 * num_blocks * BLOCK_SIZE)
    host = Host(num_slots=2 * num_blocks, limits=limits)
    rank = Rank(
        limits=limits,
        settings=SchedulerSettings(max_num_batched_tokens=1 << 20, output_reserve_tokens=8),
        host=host.index.for_owner(Owner(0)) if with_host else None,
    )
    rank.executor = ScriptedExecutor(limits=rank.limits, verify=False)
    rank.executor.attach_arena(host.arena)
    prompt = [number % 32 for number in range(num_blocks * BLOCK_SIZE)]
    rank.ask("cold", prompt, max_output_tokens=1)
    longer = [*prompt, *range(NUM_NEW_BLOCKS * BLOCK_SIZE)]
    rank.ask("settles what is made once", longer, max_output_tokens=1)
    raw = msgspec.msgpack.encode(make_submit("warm", [*longer, *range(NUM_NEW_BLOCKS * BLOCK_SIZE)]))

    def warm_turn() -> None:
        rank.scheduler.submit(decode(raw))
        while rank.scheduler.has_work:
            rank.step()

    num_demoted = rank.scheduler.stats().demoted_blocks_total
    num_opcodes = count_opcodes(warm_turn)
    num_demoted = rank.scheduler.stats().demoted_blocks_total - num_demoted
    assert num_demoted == (NUM_NEW_BLOCKS + 1 if with_host else 0)  # its own, and its answer's
    assert rank.cached["warm"] == len(longer)
    assert rank.ends["warm"] == ["length"]
    return num_opcodes


@pytest.mark.parametrize("with_host", [False, True])
@pytest.mark.parametrize(("short", "long"), [(300, 6_000)])
def test_a_conversation_twenty_times_as_long_costs_hardly_more_python(
    short: int, long: int, with_host: bool
) -> None:
    costs = [opcodes_of_a_warm_turn(length, with_host=with_host) for length in (short, long)]
    more = costs[1] - costs[0]
    assert more < (long - short) / 4  # the halving of a search, and not one instruction a block
