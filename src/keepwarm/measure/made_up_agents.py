"""Coding agents that do not exist, at work on projects that do not exist. Text only, the same every time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SYSTEM_PROMPT = "You are a careful coding agent. Answer in one or two short sentences."


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeUpAgent:
    """What one agent's user side says: `messages[0]` carries the project, the others are short."""

    name: str
    messages: Sequence[str]


def made_up_agents(*, num_agents: int, num_turns: int) -> list[MadeUpAgent]:
    """Agents with a project each, so that beyond the system prompt none can use another's prefix."""
    return [
        MadeUpAgent(
            name=_PROJECTS[i % len(_PROJECTS)][0] + (f"-{i}" if i >= len(_PROJECTS) else ""),
            messages=_messages(i, num_turns),
        )
        for i in range(num_agents)
    ]


_PROJECTS = (
    ("harbour", ("berth", "tide", "vessel", "pilot")),
    ("orchard", ("tree", "harvest", "basket", "picker")),
    ("library", ("volume", "loan", "reader", "shelf")),
    ("railway", ("platform", "signal", "carriage", "guard")),
)

_TASKS = (
    "Which file would you change to refuse a {noun} without a name, and how?",
    "The tests say: FAILED tests/test_{noun}.py::test_total_of_no_{noun}s_is_zero - TypeError: "
    "unsupported operand type(s) for +: 'int' and 'NoneType'. What is the likely cause?",
    "I have changed {noun}.py so that a missing weight counts as zero. All tests of {noun}.py pass now. "
    "Which test is still missing?",
    "Please sum up in one sentence what {noun}.py is for, so that I can put it on its first line.",
)


def _messages(agent_index: int, num_turns: int) -> list[str]:
    project, nouns = _PROJECTS[agent_index % len(_PROJECTS)]
    tasks = [
        _TASKS[turn % len(_TASKS)].format(noun=nouns[turn % len(nouns)])
        + (f" (step {turn})" if turn >= len(_TASKS) else "")
        for turn in range(num_turns)
    ]
    files = "\n".join(_source_file(noun, agent_index) for noun in nouns)
    return [f"These are the files of the project {project}-{agent_index}.\n\n{files}\n{tasks[0]}", *tasks[1:]]


def _source_file(noun: str, agent_index: int) -> str:
    kind = noun.capitalize()
    return f"""# {noun}.py
@dataclass
class {kind}:
    name: str
    weight: int | None = None
    opened_in: int = {1900 + 7 * agent_index + len(noun)}

def load_{noun}s(path):
    with open(path) as lines:
        return [parse_{noun}(line) for line in lines if line.strip()]

def parse_{noun}(line):
    name, _, weight = line.partition(",")
    return {kind}(name=name.strip(), weight=int(weight) if weight else None)

def total_weight_of_{noun}s({noun}s):
    return sum({noun}.weight for {noun} in {noun}s)

def oldest_{noun}({noun}s):
    return min({noun}s, key=lambda {noun}: {noun}.opened_in)
"""
