"""Two tenants share nothing: neither finds, times nor poisons what the other has read."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from keepwarm.chat.messages import Chat
from keepwarm.core.ids import TenantId
from keepwarm.core.principal import Principal
from keepwarm.gateway.sharing import sharing_circle
from tests.backend.tiered_rank import tiered_rank
from tests.dialects.answers import said
from tests.gateway.doors import KEY, OTHER_KEY, SECOND_KEY, without_socket
from tests.gateway.scripted_replica import Script, ScriptedReplica
from tests.gateway.whole_stack import WholeStack, whole_stack

SECRET_PROMPT = "the launch is on the ninth of May; " * 40
MESSAGES = "/v1/messages"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a turn says of the cache, and what it cost the engine."""

    text: str
    cached_tokens: int
    by_tier: str
    computed_tokens: int
    num_steps: int


class Desk:
    """Asks one turn at a time, for whoever."""

    def __init__(self, stack: WholeStack, client: httpx.AsyncClient) -> None:
        self._stack = stack
        self._client = client
        self._before = (0, 0)

    async def ask(self, key: str, *texts: str, session: str = "s") -> Asked:
        """`texts`: user, assistant, user, …"""
        roles = itertools.cycle(("user", "assistant"))
        body: dict[str, Any] = {
            "model": "smol",
            "max_tokens": 8,
            "temperature": 0,
            "messages": [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)],
        }
        headers = {"x-api-key": key, "x-session-id": session}
        response = await self._client.post(MESSAGES, json=body, headers=headers)
        answer = response.json()
        stats = await self._stack.until_idle()
        computed_before, steps_before = self._before
        self._before = (stats.computed_tokens_total, stats.steps_total)
        return Asked(
            text="".join(block["text"] for block in answer["content"]),
            cached_tokens=answer["usage"]["cache_read_input_tokens"],
            by_tier=response.headers["x-keepwarm-cached-tokens"],
            computed_tokens=stats.computed_tokens_total - computed_before,
            num_steps=stats.steps_total - steps_before,
        )


@pytest.fixture
async def desk(tmp_path: Path) -> Any:
    async with whole_stack(tmp_path) as stack, stack.door.client() as client:
        yield Desk(stack, client)


@pytest.fixture
async def desk_over_host_memory(tmp_path: Path) -> Any:
    """Device memory holds one conversation."""
    async with whole_stack(tmp_path, rank=tiered_rank()) as stack, stack.door.client() as client:
        yield Desk(stack, client)


@pytest.fixture
async def desk_of_loners(tmp_path: Path) -> Any:
    """Keys of one tenant do not share."""
    async with whole_stack(tmp_path, share_prefixes=False) as stack, stack.door.client() as client:
        yield Desk(stack, client)


async def test_another_tenant_neither_hits_nor_times_what_one_has_read(desk: Desk) -> None:
    """What its turn costs the engine, which is what it could time, is what it would cost without the
    other tenant."""
    cold = await desk.ask(KEY, SECRET_PROMPT)
    warm = await desk.ask(KEY, SECRET_PROMPT)
    theirs = await desk.ask(OTHER_KEY, SECRET_PROMPT)
    assert warm.cached_tokens > 1000
    assert warm.num_steps < cold.num_steps
    assert theirs == cold
    assert theirs.cached_tokens == 0


async def test_a_guess_at_the_beginning_shows_nothing_either(desk: Desk) -> None:
    """Whoever could lengthen a guess block by block would read the whole prompt."""
    await desk.ask(KEY, SECRET_PROMPT)
    right, wrong = SECRET_PROMPT[:500], "x" * 500
    guesses = [await desk.ask(OTHER_KEY, guess) for guess in (right, wrong)]
    assert [guess.cached_tokens for guess in guesses] == [0, 0]
    assert guesses[0].computed_tokens == guesses[1].computed_tokens
    assert guesses[0].num_steps == guesses[1].num_steps


async def test_what_another_tenant_has_read_never_serves_one(desk: Desk) -> None:
    """So that nothing wrong could be left there for it."""
    theirs = await desk.ask(OTHER_KEY, SECRET_PROMPT)
    more = await desk.ask(OTHER_KEY, SECRET_PROMPT, theirs.text, "go on")
    mine = await desk.ask(KEY, SECRET_PROMPT)
    mine_too = await desk.ask(KEY, SECRET_PROMPT, theirs.text, "go on")
    assert more.cached_tokens > 1000
    assert mine.cached_tokens == 0
    assert mine == theirs
    assert mine_too.cached_tokens <= more.cached_tokens  # its own first turn, and no more than that


async def test_the_same_session_id_joins_no_two_tenants(desk: Desk) -> None:
    """Ids are the clients' own words."""
    first = await desk.ask(KEY, SECRET_PROMPT, session="shared")
    theirs = await desk.ask(OTHER_KEY, SECRET_PROMPT, first.text, "go on", session="shared")
    assert theirs.cached_tokens == 0


async def test_host_memory_shows_another_tenant_nothing_either(desk_over_host_memory: Desk) -> None:
    desk = desk_over_host_memory
    cold = await desk.ask(KEY, SECRET_PROMPT)
    await desk.ask(SECOND_KEY, "a " * 900)  # and the prompt is in host memory alone
    theirs = await desk.ask(OTHER_KEY, SECRET_PROMPT)
    await desk.ask(SECOND_KEY, "b " * 900)
    warm = await desk.ask(KEY, SECRET_PROMPT)
    assert theirs == cold
    assert warm.cached_tokens > 1000
    assert warm.by_tier == f"l0=0, l1={warm.cached_tokens}, disk=0"


async def test_keys_of_one_tenant_share_what_was_read(desk: Desk) -> None:
    await desk.ask(KEY, SECRET_PROMPT)
    assert (await desk.ask(SECOND_KEY, SECRET_PROMPT)).cached_tokens > 1000


async def test_keys_of_one_tenant_share_nothing_where_that_is_switched_off(desk_of_loners: Desk) -> None:
    cold = await desk_of_loners.ask(KEY, SECRET_PROMPT)
    theirs = await desk_of_loners.ask(SECOND_KEY, SECRET_PROMPT)
    assert theirs == cold
    assert (await desk_of_loners.ask(KEY, SECRET_PROMPT)).cached_tokens > 1000
    assert (await desk_of_loners.ask(SECOND_KEY, SECRET_PROMPT)).cached_tokens > 1000
    assert (await desk_of_loners.ask(OTHER_KEY, SECRET_PROMPT)).cached_tokens == 0


@pytest.mark.parametrize(
    ("share_prefixes", "circles"),
    [(True, ["default", "default", "other"]), (False, ["default/key_1", "default/key_3", "other/key_2"])],
)
async def test_one_name_says_who_shares_in_turns_and_counts_alike(
    share_prefixes: bool, circles: list[str]
) -> None:
    """Everything in the backend goes by it: blocks' names, known conversations, answers, segments."""
    replica = CountingReplica(lambda _: said("hello"))
    body = {"model": "smol", "max_tokens": 8, "messages": [{"role": "user", "content": "hello"}]}
    async with without_socket(replica, share_prefixes=share_prefixes) as client:
        for key in (KEY, SECOND_KEY, OTHER_KEY):
            await client.post(MESSAGES, json=body, headers={"x-api-key": key})
            await client.post(f"{MESSAGES}/count_tokens", json=body, headers={"x-api-key": key})
    asked = [(await replica.next_answer()).request.tenant for _ in range(3)]
    assert asked == replica.counted_for == circles


class CountingReplica(ScriptedReplica):
    """Keeps for whom it counted."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.counted_for: list[str] = []

    async def count_tokens(self, tenant: TenantId, chat: Chat) -> int:
        self.counted_for.append(tenant)
        return await super().count_tokens(tenant, chat)


def test_no_circle_of_one_tenant_is_another_s() -> None:
    owners = [
        Principal(tenant=TenantId(tenant), key_id=key) for tenant, key in (("a", "b"), ("b", "a"), ("ab", ""))
    ]
    circles = [sharing_circle(owner, share_prefixes=share) for owner in owners for share in (True, False)]
    assert len(set(circles)) == 6
