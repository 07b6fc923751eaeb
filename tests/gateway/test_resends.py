"""Clients give up on a turn and send it again: the abandoned copy ends, and what it read counts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.doors import LIMIT_S
from tests.gateway.whole_stack import whole_stack

NUM_WORDS = 4000
BODY: dict[str, Any] = {
    "model": "smol",
    "max_tokens": 4,
    "messages": [{"role": "user", "content": "word " * NUM_WORDS}],
}
PROMPT_TOKENS = 5 * NUM_WORDS
STEP_TOKENS = 64


@pytest.mark.parametrize("stream", [False, True])
async def test_an_abandoned_turn_is_cancelled_and_the_resend_goes_on_where_it_was(
    tmp_path: Path, stream: bool
) -> None:
    async with whole_stack(tmp_path) as stack, stack.door.client() as client:
        abandoned = asyncio.create_task(client.post("/v1/messages", json=BODY | {"stream": stream}))
        await stack.until(lambda stats: stats.computed_tokens_total >= 10 * STEP_TOKENS)
        abandoned.cancel()
        await asyncio.wait({abandoned})
        left = await stack.until(lambda stats: stats.running == 0 and stats.blocks_held == 0)
        again = await client.post("/v1/messages", json=BODY)
    assert left.computed_tokens_total < PROMPT_TOKENS // 2
    usage = again.json()["usage"]
    assert usage["cache_read_input_tokens"] >= left.computed_tokens_total - STEP_TOKENS
    assert stack.stats.computed_tokens_total < PROMPT_TOKENS + 2 * STEP_TOKENS


async def test_a_resend_beside_the_open_one_waits_for_what_is_being_read(tmp_path: Path) -> None:
    async with whole_stack(tmp_path) as stack, stack.door.client() as client:
        first = asyncio.create_task(client.post("/v1/messages", json=BODY))
        await stack.until(lambda stats: stats.computed_tokens_total >= 10 * STEP_TOKENS)
        async with asyncio.timeout(LIMIT_S):
            second = await client.post("/v1/messages", json=BODY)
            assert (await first).json()["content"] == second.json()["content"]
    assert second.json()["usage"]["cache_read_input_tokens"] > PROMPT_TOKENS - 2 * STEP_TOKENS
    assert stack.stats.computed_tokens_total < PROMPT_TOKENS + 4 * STEP_TOKENS
