"""What every `RankPort` must keep, over each one we have."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest

from keepwarm.backend.rank_port import OpenTurns, RankPort
from keepwarm.core.errors import EngineLost, InvariantBroken, NotReady
from keepwarm.core.ids import RequestId
from keepwarm.core.rank_messages import Admitted, Ended, RankStats, Tokens
from tests.backend.ports import (
    LONG_TOKENS,
    Ear,
    MakePort,
    in_process_group,
    in_process_rank,
    process_group,
    rank_process,
    turn,
)


@pytest.fixture(params=[in_process_rank, in_process_group, rank_process, process_group])
async def port(request: pytest.FixtureRequest) -> AsyncIterator[RankPort]:
    make_port: MakePort = request.param
    port = make_port()
    await port.start()
    yield port
    await port.close()


async def test_a_turn_is_admitted_then_gives_its_tokens_then_ends(port: RankPort) -> None:
    ear = Ear()
    port.submit(turn("a", max_output_tokens=3), ear)
    assert (await ear.end()).reason == "length"
    kinds = [type(event) for event in ear.events]
    assert kinds[0] is Admitted
    assert kinds[-1] is Ended
    assert set(kinds[1:-1]) == {Tokens}
    assert len(ear.tokens) == 3


async def test_turns_that_run_together_are_kept_apart(port: RankPort) -> None:
    ears = {f"t{i}": Ear() for i in range(10)}
    for i, (name, ear) in enumerate(ears.items()):
        port.submit(turn(name, num_prompt_tokens=20 + i, max_output_tokens=5 + i), ear)
    for i, ear in enumerate(ears.values()):
        await ear.end()
        assert len(ear.tokens) == 5 + i


async def test_an_abort_ends_the_turn_as_aborted_once(port: RankPort) -> None:
    ear = Ear()
    port.submit(turn("a", max_output_tokens=LONG_TOKENS), ear)
    await ear.until(lambda ear: len(ear.tokens) > 2)
    port.abort(RequestId("a"))
    port.abort(RequestId("a"))
    assert (await ear.end()).reason == "aborted"
    assert len(ear.tokens) < LONG_TOKENS
    await _round_trip(port)
    assert len(ear.ends) == 1


async def test_an_abort_before_anything_was_computed_ends_the_turn(port: RankPort) -> None:
    ear = Ear()
    port.submit(turn("a", max_output_tokens=LONG_TOKENS), ear)
    port.abort(RequestId("a"))
    assert (await ear.end()).reason == "aborted"


async def test_a_cut_ends_the_turn_as_stopped(port: RankPort) -> None:
    ear = Ear()
    port.submit(turn("a", max_output_tokens=LONG_TOKENS), ear)
    await ear.until(lambda ear: len(ear.tokens) > 2)
    port.cut(RequestId("a"), 2)
    assert (await ear.end()).reason == "stop"


async def test_aborting_and_cutting_what_is_not_there_does_nothing(port: RankPort) -> None:
    port.abort(RequestId("nobody"))
    port.cut(RequestId("nobody"), 1)
    await _round_trip(port)


async def test_the_same_id_twice_is_our_own_mistake(port: RankPort) -> None:
    ear = Ear()
    port.submit(turn("a", max_output_tokens=LONG_TOKENS), ear)
    with pytest.raises(InvariantBroken, match="a was submitted twice"):
        port.submit(turn("a"), Ear())
    port.abort(RequestId("a"))
    await ear.end()


async def test_closing_ends_every_open_turn_and_takes_no_more(port: RankPort) -> None:
    ears = [Ear() for _ in range(6)]
    for i, ear in enumerate(ears):
        port.submit(turn(f"t{i}", max_output_tokens=LONG_TOKENS), ear)
    await ears[0].until(lambda ear: bool(ear.tokens))
    await port.close()
    for ear in ears:
        end = await ear.end()
        assert end.reason == "failed"
        assert end.error is not None
        assert end.error.code == "not_ready"
        assert len(ear.ends) == 1
    with pytest.raises(NotReady, match="shutting down"):
        port.submit(turn("late"), Ear())


async def test_stats_count_what_was_done(port: RankPort) -> None:
    await _round_trip(port, num_prompt_tokens=8, max_output_tokens=4)
    stats = _all_stats(port)
    assert sum(each.prompt_tokens_total for each in stats) == 8
    assert sum(each.output_tokens_total for each in stats) == 4
    assert all(each.blocks_total == each.blocks_empty for each in stats)


async def test_random_submits_aborts_and_cuts_end_each_turn_once(port: RankPort) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201  # shown when the test fails
    rng = random.Random(seed)
    ears: dict[str, Ear] = {}
    for i in range(120):
        name = f"t{i}"
        ears[name] = Ear()
        prompt, output = rng.randint(1, 200), rng.randint(1, 60)
        port.submit(turn(name, num_prompt_tokens=prompt, max_output_tokens=output), ears[name])
        victim = rng.choice(list(ears))
        match rng.randrange(4):
            case 0:
                port.abort(RequestId(victim))
            case 1:
                port.cut(RequestId(victim), rng.randint(1, 60))
            case 2:
                await ears[victim].until(lambda ear: bool(ear.events))
            case _:
                await ears[victim].end()
    for ear in ears.values():
        await ear.end()
    await _round_trip(port)
    assert all(len(ear.ends) == 1 for ear in ears.values())
    assert all(each.waiting == each.running == each.blocks_held == 0 for each in _all_stats(port))


def _all_stats(port: RankPort) -> list[RankStats]:
    """Of the ranks that have said something."""
    stats = [view.stats for view in port.ranks if view.stats is not None]
    assert stats
    return stats


async def _round_trip(port: RankPort, **options: int) -> None:
    """Everything said before this has been heard by the rank, and its answer by us."""
    ear = Ear()
    port.submit(turn(f"round trip {id(ear)}", **options), ear)
    await ear.end()


def test_open_turns_drop_what_comes_after_an_end() -> None:
    turns, ear = OpenTurns(), Ear()
    turns.open(RequestId("a"), ear)
    turns.end_all(EngineLost("gone"))
    turns.deliver([Ended(request_id=RequestId("a"), reason="stop")])
    assert [end.reason for end in ear.ends] == ["failed"]
    assert len(turns) == 0
