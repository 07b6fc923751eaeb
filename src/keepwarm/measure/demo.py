"""Drives a few made-up agents against a running server, then asks whether its cache told the truth.

Two verdicts: no turn after an agent's first *missed* what its session had left in the cache, and
every answer equals the one to the same request with the cache bypassed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from keepwarm.measure.made_up_agents import SYSTEM_PROMPT, MadeUpAgent, made_up_agents
from keepwarm.measure.messages_api import JsonObject, MessagesApi, RequestFailed, TimedAnswer
from keepwarm.measure.report import Report, median
from keepwarm.measure.turns import TurnClass, classify, expected_cached_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """How much the demo does."""

    model: str
    block_size: int
    num_agents: int = 3
    num_turns: int = 4
    max_output_tokens: int = 24


class DemoTurn(msgspec.Struct, frozen=True, kw_only=True, rename={"turn_class": "class"}):
    """One turn as its agent saw it, and whether its cold run answered alike (None: not run yet)."""

    agent: str
    turn: int
    prompt_tokens: int
    cached_tokens: int
    expected_cached_tokens: int
    missed: bool
    new_tokens: int
    turn_class: TurnClass
    output_tokens: int
    ttft_s: float
    tokens_per_s: float | None
    identical: bool | None = None


class DemoReport(Report, frozen=True, kw_only=True):
    """`pass` is true when `problems` is empty."""

    turns: tuple[DemoTurn, ...]
    cold_ttft_p50_s: float | None
    warm_ttft_p50_s: float | None


class Watcher:
    """Told what happens while it happens. This one says nothing; a terminal derives from it."""

    def turn_ended(self, turn: DemoTurn) -> None:
        """An agent's turn was answered."""

    def cold_run_ended(self, turn: DemoTurn) -> None:
        """The same request was answered without the cache; `identical` is set."""


async def run_demo(api: MessagesApi, settings: DemoSettings, *, version: str, watcher: Watcher) -> DemoReport:
    """Every agent's turns, one at a time so that each time to first token is that turn's own; then
    every request again without the cache, one of each agent together.

    Raises `RequestFailed` when the server refuses or breaks off.
    """
    agents = made_up_agents(num_agents=settings.num_agents, num_turns=settings.num_turns)
    conversations = [_Conversation(agent, settings) for agent in agents]
    warm: list[list[_AskedTurn]] = []
    for number in range(settings.num_turns):
        asked_now: list[_AskedTurn] = []
        for conversation in conversations:
            asked_now.append(await conversation.take_turn(api, number))
            watcher.turn_ended(asked_now[-1].turn)
        warm.append(asked_now)

    turns: list[DemoTurn] = []
    problems: list[str] = []
    for asked_now in warm:
        for turn, found in await _compare_with_cold(api, asked_now, watcher.cold_run_ended):
            turns.append(turn)
            problems += found
    return _report(settings, turns, problems, version)


@dataclass(frozen=True, slots=True, kw_only=True)
class _AskedTurn:
    """A turn, the very request that it was, and its answer."""

    turn: DemoTurn
    body: JsonObject
    answer: TimedAnswer


class _Conversation:
    """One agent's growing conversation."""

    def __init__(self, agent: MadeUpAgent, settings: DemoSettings) -> None:
        self._agent = agent
        self._settings = settings
        self._messages: list[JsonObject] = []
        self._previous_tokens = 0

    async def take_turn(self, api: MessagesApi, number: int) -> _AskedTurn:
        self._messages.append({"role": "user", "content": self._agent.messages[number]})
        body: JsonObject = {
            "model": self._settings.model,
            "max_tokens": self._settings.max_output_tokens,
            "temperature": 0,
            "system": SYSTEM_PROMPT,
            "messages": list(self._messages),
        }
        answer = await api.answer(body)
        turn = self._describe(number, answer)
        self._messages.append({"role": "assistant", "content": answer.text})
        self._previous_tokens = answer.prompt_tokens + answer.output_tokens
        return _AskedTurn(turn=turn, body=body, answer=answer)

    def _describe(self, number: int, answer: TimedAnswer) -> DemoTurn:
        expected = expected_cached_tokens(
            previous_tokens=self._previous_tokens, block_size=self._settings.block_size
        )
        return DemoTurn(
            agent=self._agent.name,
            turn=number + 1,
            prompt_tokens=answer.prompt_tokens,
            cached_tokens=answer.cached_tokens,
            expected_cached_tokens=expected,
            missed=answer.cached_tokens < expected,
            new_tokens=answer.prompt_tokens - answer.cached_tokens,
            turn_class=classify(prompt_tokens=answer.prompt_tokens, cached_tokens=answer.cached_tokens),
            output_tokens=answer.output_tokens,
            ttft_s=answer.first_token_s,
            tokens_per_s=answer.tokens_per_s,
        )


async def _compare_with_cold(
    api: MessagesApi, asked_now: Sequence[_AskedTurn], ended: Callable[[DemoTurn], None]
) -> list[tuple[DemoTurn, list[str]]]:
    """Each turn with `identical` set, and what is wrong with it."""

    async def compare(asked: _AskedTurn) -> tuple[DemoTurn, list[str]]:
        cold: TimedAnswer | RequestFailed
        try:
            cold = await api.answer(asked.body, use_cache=False)
            same = _what_was_said(cold) == _what_was_said(asked.answer)
        except RequestFailed as error:  # a verdict about this turn; the others still get theirs
            cold, same = error, False
        turn = msgspec.structs.replace(asked.turn, identical=same)
        ended(turn)
        return turn, _problems(turn, cold)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(compare(asked), name=f"cold-{asked.turn.agent}") for asked in asked_now]
    return [task.result() for task in tasks]


def _what_was_said(answer: TimedAnswer) -> tuple[str, str, int]:
    return answer.text, answer.stop_reason, answer.output_tokens


def _problems(turn: DemoTurn, cold: TimedAnswer | RequestFailed) -> list[str]:
    name = f"{turn.agent}, turn {turn.turn}"
    problems = []
    if turn.missed:
        problems.append(
            f"{name} missed: {turn.cached_tokens} tokens were cached, at least "
            f"{turn.expected_cached_tokens} should have been"
        )
    if isinstance(cold, RequestFailed):
        return [*problems, f"{name}: its cold run failed: {cold}"]
    if not turn.identical:
        problems.append(f"{name}: the answer differs from its cold run")
    if cold.cached_tokens:
        problems.append(f"{name}: the cold run was not cold, {cold.cached_tokens} tokens came from the cache")
    return problems


def _report(
    settings: DemoSettings, turns: Sequence[DemoTurn], problems: Sequence[str], version: str
) -> DemoReport:
    return DemoReport(
        tool="demo",
        version=version,
        passed=not problems,
        problems=tuple(problems),
        settings={
            "model": settings.model,
            "block_size": settings.block_size,
            "agents": settings.num_agents,
            "turns": settings.num_turns,
            "max_tokens": settings.max_output_tokens,
            "temperature": 0,
        },
        turns=tuple(turns),
        cold_ttft_p50_s=median(turn.ttft_s for turn in turns if turn.turn_class == "cold"),
        warm_ttft_p50_s=median(turn.ttft_s for turn in turns if turn.turn_class == "warm"),
    )
