"""A made-up agent's conversation, and how its last two turns grow, as the renderer would serve them.

    turn n:      prompt n            │ answer n │
    turn n + 1:  prompt n + 1 ············································
                 ├─ kept ──────┤─ read again ───┤─ new: message, invitation ┤

With a template that only appends, all of prompt n and answer n is kept. Knows nothing of why one
does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

import numpy as np

from keepwarm.chat.conversation import fold
from keepwarm.chat.invitation import num_equal
from keepwarm.chat.lint_spelling import AnswerSpelling
from keepwarm.chat.messages import Chat, Message, Part, Reasoning, Text, ToolResult, ToolSpec, ToolUse
from keepwarm.chat.prompt_writer import Program
from keepwarm.chat.render import ChatRenderer, RenderedPrompt
from keepwarm.chat.replay import keys_before
from keepwarm.chat.tokenizer import Tokenizer
from keepwarm.core.ids import TenantId, TokenIds, token_ids

A_DAY = datetime(2026, 1, 30)

_TENANT = TenantId("")
_FILLER = " the cache keeps what was read"
_NUM_FILLERS_MEASURED = 16

Thinking = Literal["none", "returned", "left_out"]
"""The model does not think; it does, and the client sends thoughts back; it does, and the client
leaves them out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeUpAgent:
    """The conversation in numbers. Sizes are those of texts: what the template adds is on top."""

    prompt_tokens: int
    head_tokens: int
    """System prompt and tools, half each."""
    new_tokens: int
    """A tool's result or a question."""
    output_tokens: int
    thought_tokens: int
    """Of the output, in conversations with thoughts."""
    turns_a_question: int

    @property
    def num_turns(self) -> int:
        """Whole rounds, each a question and its steps."""
        a_round = (self.new_tokens + self.output_tokens) * self.turns_a_question
        return max(1, round((self.prompt_tokens - self.head_tokens) / a_round)) * self.turns_a_question

    def describe(self) -> str:
        """All of it in words."""
        return (
            f"a conversation of {self.prompt_tokens:,} tokens in which a turn brings {self.new_tokens} new "
            f"ones and an answer of {self.output_tokens} ({self.thought_tokens} of them thoughts, where the "
            f"model thinks), with a new question every {self.turns_a_question} turns"
        )

    def average(self, *, step: float, question: float) -> float:
        """Over the turns after a tool's result and the ones after a question."""
        return (step * (self.turns_a_question - 1) + question) / self.turns_a_question


TYPICAL_AGENT = MadeUpAgent(
    prompt_tokens=100_000,  # medians of 49,334 requests of coding agents: 104K, 713 new, 216 written
    head_tokens=15_000,
    new_tokens=700,
    output_tokens=216,
    thought_tokens=100,
    turns_a_question=10,
)
SMALL_AGENT = MadeUpAgent(
    prompt_tokens=1_000,
    head_tokens=100,
    new_tokens=20,
    output_tokens=25,
    thought_tokens=10,
    turns_a_question=5,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeUpTurn:
    """One answer, and what comes back after it. A text begins with a word of its own: `qqanswer00012`."""

    answer: tuple[Part, ...]
    sent_back: Message
    spelled: str
    """What the model wrote."""
    next: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeUpConversation:
    """The last turn's `next` is a question, the one before it ends in a tool's result."""

    opening: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    turns: tuple[MadeUpTurn, ...]

    def chat(self, num_turns: int) -> Chat:
        """What the client sends after so many turns."""
        later = (message for turn in self.turns[:num_turns] for message in (turn.sent_back, turn.next))
        return Chat(messages=(*self.opening, *later), tools=self.tools)


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A turn and the next one."""

    before: RenderedPrompt
    generated: TokenIds
    after: RenderedPrompt

    @property
    def cached(self) -> TokenIds:
        """What was read and written when the next turn comes."""
        return np.concatenate([self.before.tokens, self.generated])

    @property
    def kept_tokens(self) -> int:
        return num_equal(self.cached, self.after.tokens)

    @property
    def read_tokens(self) -> int:
        """What the next turn reads."""
        return len(self.after.tokens) - self.kept_tokens

    @property
    def lost_tokens(self) -> int:
        """Of what was cached, what the next turn has no use for."""
        return len(self.cached) - self.kept_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """How a conversation grew by a tool's result, and then by a question."""

    step: Growth
    question: Growth


def run_trial(
    tokenizer: Tokenizer, agent: MadeUpAgent, thinking: Thinking, *, now: datetime = A_DAY
) -> Trial:
    """Raises `BadRequest` with what the template has against the conversation."""
    renderer = ChatRenderer(tokenizer, now=now, conversation_memo_bytes=0)
    conversation = make_up(tokenizer, renderer.program, agent, thinking)
    generated = [tokenizer.encode_template_text(turn.spelled) for turn in conversation.turns]
    last = len(conversation.turns) - 1
    _remember_until(renderer, conversation, generated, last - 1)
    prompts = []
    for num_turns in range(last - 1, last + 2):
        prompts.append(renderer.render(_TENANT, conversation.chat(num_turns)))
        if num_turns <= last:
            answer = conversation.turns[num_turns].answer
            renderer.remember(_TENANT, prompts[-1], answer, generated[num_turns].tolist())
    return Trial(
        step=Growth(before=prompts[0], generated=generated[last - 1], after=prompts[1]),
        question=Growth(before=prompts[1], generated=generated[last], after=prompts[2]),
    )


def make_up(
    tokenizer: Tokenizer, program: Program, agent: MadeUpAgent, thinking: Thinking
) -> MadeUpConversation:
    """Alike, but for thoughts, whatever `thinking`."""
    write = _Writer(tokenizer)
    spelling = AnswerSpelling(tokenizer, program)
    tool = ToolSpec(
        name="read",
        description=write.text("tools", 0, agent.head_tokens // 2),
        parameters={"type": "object", "properties": {"path": {"type": "string"}}},
    )
    opening = (
        Message(role="system", parts=(Text(text=write.text("system", 0, agent.head_tokens // 2)),)),
        Message(role="user", parts=(Text(text=write.text("question", 0, agent.new_tokens)),)),
    )
    turns = tuple(write.turns(agent, thinking, spelling))
    return MadeUpConversation(opening=opening, tools=(tool,), turns=turns)


class _Writer:
    def __init__(self, tokenizer: Tokenizer) -> None:
        measured = tokenizer.encode(_FILLER * _NUM_FILLERS_MEASURED)
        self._tokens_a_filler = len(measured) / _NUM_FILLERS_MEASURED

    def text(self, kind: str, number: int, num_tokens: int) -> str:
        """About so many tokens."""
        return f"qq{kind}{number:05d}" + _FILLER * max(1, round(num_tokens / self._tokens_a_filler))

    def turns(self, agent: MadeUpAgent, thinking: Thinking, spelling: AnswerSpelling) -> Iterator[MadeUpTurn]:
        for number in range(1, agent.num_turns + 1):
            said = self._said(agent, number)
            thought = self.text("thought", number, agent.thought_tokens) if thinking != "none" else ""
            answer = (Reasoning(text=thought), *said) if thought else said
            yield MadeUpTurn(
                answer=answer,
                sent_back=Message(role="assistant", parts=said if thinking == "left_out" else answer),
                spelled=spelling.of(thought, said),
                next=self._next(agent, number, said),
            )

    def _said(self, agent: MadeUpAgent, number: int) -> tuple[Part, ...]:
        num_tokens = agent.output_tokens - agent.thought_tokens
        if number % agent.turns_a_question == 0:
            return (Text(text=self.text("answer", number, num_tokens) + "\n"),)
        call = ToolUse(
            id=f"call_{number:024x}",
            name="read",
            arguments={"path": self.text("call", number, num_tokens // 2)},
        )
        return (Text(text=self.text("answer", number, num_tokens // 2)), call)

    def _next(self, agent: MadeUpAgent, number: int, said: tuple[Part, ...]) -> Message:
        call = said[-1]
        if not isinstance(call, ToolUse):
            question = Text(text=self.text("question", number, agent.new_tokens) + "\n")
            return Message(role="user", parts=(question,))
        result = Text(text=self.text("result", number, agent.new_tokens) + "\n")
        return Message(role="user", parts=(ToolResult(tool_use_id=call.id, parts=(result,)),))


def _remember_until(
    renderer: ChatRenderer, conversation: MadeUpConversation, generated: list[TokenIds], num_turns: int
) -> None:
    """As if each of these turns had been asked: its prompt is not needed to know where it stood."""
    first = renderer.render(_TENANT, conversation.chat(0))
    if first.invitation is None:
        return
    names = keys_before(fold(conversation.chat(num_turns)))
    num_opening = len(conversation.opening)
    for number, turn in enumerate(conversation.turns[:num_turns]):
        invitation = replace(first.invitation, before=names[num_opening + 2 * number])
        asked = RenderedPrompt(tokens=token_ids([]), num_replayed_tokens=0, invitation=invitation)
        renderer.remember(_TENANT, asked, turn.answer, generated[number].tolist())
