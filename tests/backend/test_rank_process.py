"""A rank that dies, hangs, cannot be loaded or loses its front: real processes."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator

import psutil
import pytest

from keepwarm.backend.rank_process import RankLimits, RankProcess
from keepwarm.core.errors import BadSetting, NotReady, SetupError, TooLittleMemory
from keepwarm.core.restarts import RestartLimits
from tests.backend.ports import (
    KEY,
    LONG_TOKENS,
    PATIENCE_S,
    QUICK,
    Ear,
    rank_process,
    scripted_settings,
    turn,
)


@pytest.fixture
async def port() -> AsyncIterator[RankProcess]:
    port = rank_process()
    await port.start()
    yield port
    await port.close()
    assert not psutil.Process().children(recursive=True)


async def test_a_killed_rank_ends_each_turn_once_and_another_one_serves(port: RankProcess) -> None:
    ears = await _turns_under_way(port)
    first_pid = _kill(port, signal.SIGKILL)
    for ear in ears:
        end = await ear.end()
        assert end.error is not None
        assert end.error.code == "engine_lost"
    with pytest.raises(NotReady, match="being started again"):
        port.submit(turn("early"), Ear())
    await _until_ready(port)
    assert port.pid != first_pid
    assert port.num_restarts == 1
    await _serves(port)
    assert all(len(ear.ends) == 1 for ear in ears)


async def test_a_hung_rank_is_killed_after_its_silence_limit() -> None:
    limits = RankLimits(silence_limit_s=1.5, restarts=RestartLimits(first_delay_s=0.01))
    port = RankProcess(scripted_settings(), hash_key=KEY, limits=limits)
    await port.start()
    try:
        ears = await _turns_under_way(port)
        hung_pid = _kill(port, signal.SIGSTOP)
        for ear in ears:
            end = await ear.end()
            assert end.error is not None
            assert "silent" in str(end.error.fields["message"])
        await _until_ready(port)
        assert not psutil.pid_exists(hung_pid)
        await _serves(port)
    finally:
        await port.close()


async def test_an_idle_rank_is_not_taken_for_hung() -> None:
    limits = RankLimits(silence_limit_s=1.2)
    port = RankProcess(scripted_settings(), hash_key=KEY, limits=limits)
    await port.start()
    try:
        pid = port.pid
        await asyncio.sleep(2.6)  # two heartbeats: time itself is what is tested
        assert port.pid == pid
        assert port.num_restarts == 0
    finally:
        await port.close()


async def test_a_rank_that_is_lost_again_and_again_is_left_stopped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits = RankLimits(restarts=RestartLimits(first_delay_s=0.01, max_delay_s=0.01, max_losses=2))
    port = RankProcess(scripted_settings(), hash_key=KEY, limits=limits)
    await port.start()
    try:
        _kill(port, signal.SIGKILL)
        async with asyncio.timeout(PATIENCE_S):
            while port.num_restarts == 0 or port.unready_reason() is not None:
                await asyncio.sleep(0.01)
        _kill(port, signal.SIGSEGV)
        async with asyncio.timeout(PATIENCE_S):
            while "left stopped" not in (port.unready_reason() or ""):
                await asyncio.sleep(0.01)
        assert port.unready_reason() == (
            "the engine was lost 2 times within 600 s and is left stopped; "
            "the last time its process ended: killed by SIGSEGV"
        )
        with pytest.raises(NotReady, match="left stopped"):
            port.submit(turn("late"), Ear())
    finally:
        await port.close()
    assert [record.levelno for record in caplog.records][-1] == logging.ERROR


async def test_a_setting_the_engine_refuses_is_the_start_s_own_error() -> None:
    port = RankProcess(scripted_settings(device_cache_gb=0.0001), hash_key=KEY, limits=QUICK)
    with pytest.raises(TooLittleMemory, match="raise it or lower --max-model-len"):
        await port.start()
    assert port.pid is None
    await port.close()


async def test_settings_that_do_not_fit_together_are_named() -> None:
    port = RankProcess(scripted_settings(max_num_batched_tokens=2), hash_key=KEY, limits=QUICK)
    with pytest.raises(BadSetting, match="--max-num-batched-tokens 2"):
        await port.start()


async def test_a_rank_that_dies_while_loading_is_a_start_error() -> None:
    port = rank_process()
    start = asyncio.create_task(port.start())
    async with asyncio.timeout(PATIENCE_S):
        while port.pid is None:
            await asyncio.sleep(0.001)
    os.kill(port.pid, signal.SIGKILL)
    with pytest.raises(SetupError, match="died while loading: killed by SIGKILL"):
        await start
    assert port.pid is None


async def test_a_rank_that_loads_for_too_long_is_killed() -> None:
    port = RankProcess(scripted_settings(), hash_key=KEY, limits=RankLimits(start_limit_s=0.01))
    with pytest.raises(SetupError, match="has not loaded its model within"):
        await port.start()
    assert not psutil.Process().children()


async def test_a_start_that_is_cancelled_leaves_no_process() -> None:
    port = rank_process()
    start = asyncio.create_task(port.start())
    async with asyncio.timeout(PATIENCE_S):
        while port.pid is None:
            await asyncio.sleep(0.001)
    start.cancel()
    await asyncio.gather(start, return_exceptions=True)
    assert not psutil.Process().children()


async def test_a_hung_rank_does_not_hold_up_the_end_of_its_front() -> None:
    limits = RankLimits(stop_limit_s=0.2)
    port = RankProcess(scripted_settings(), hash_key=KEY, limits=limits)
    await port.start()
    _kill(port, signal.SIGSTOP)
    async with asyncio.timeout(5.0):
        await port.close()
    assert not psutil.Process().children()


async def test_ctrl_c_in_a_terminal_leaves_the_rank_to_its_front(port: RankProcess) -> None:
    _kill(port, signal.SIGINT)
    await _serves(port)
    assert port.num_restarts == 0


async def _turns_under_way(port: RankProcess) -> list[Ear]:
    """More than run together, so that some wait."""
    ears = [Ear() for _ in range(6)]
    for i, ear in enumerate(ears):
        port.submit(turn(f"t{i}", num_prompt_tokens=100, max_output_tokens=LONG_TOKENS), ear)
    await ears[0].until(lambda ear: bool(ear.tokens))
    return ears


def _kill(port: RankProcess, number: signal.Signals) -> int:
    assert port.pid is not None
    os.kill(port.pid, number)
    return port.pid


async def _until_ready(port: RankProcess) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while port.unready_reason() is not None:
            await asyncio.sleep(0.01)


async def _serves(port: RankProcess) -> None:
    ear = Ear()
    port.submit(turn("after"), ear)
    assert (await ear.end()).reason == "length"
