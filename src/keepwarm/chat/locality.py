"""Whether a template writes each message by itself, found out by trial.

Small conversations of every shape are made up, grown step by step, and rendered whole and as a
grown window. Only where the two always agree is a window trusted. How a template treats thoughts
and new questions differs so much that it is learnt apart for each.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from keepwarm.chat.conversation import fold
from keepwarm.chat.growth import asks, cut_window, grown_turn, has_reasoning
from keepwarm.chat.messages import Chat, Message, Part, Reasoning, Text, ToolResult, ToolSpec, ToolUse
from keepwarm.chat.prompt_writer import Locality, Marks, Program, PromptTurn, PromptWriter
from keepwarm.chat.replay import RememberedAnswer, keys_before
from keepwarm.core.errors import BadRequest
from keepwarm.core.ids import TenantId, token_ids

_NUM_CONVERSATIONS = 32
_MAX_ROUNDS = 7
_MIN_TRIALS = 3
_MARKS = Marks(shield="\U000f0000", place="\U000f0001")
_TOOL = ToolSpec(
    name="qqread",
    description="qqreads",
    parameters={"type": "object", "properties": {"qqpath": {"type": "string"}}},
)


def learn_locality(writer: PromptWriter, program: Program) -> Locality:
    """Renders a few hundred small conversations."""
    agreed: Counter[tuple[bool, bool]] = Counter()
    failed: set[tuple[bool, bool]] = set()
    for seed in range(_NUM_CONVERSATIONS):
        for kind, agrees in _trials(writer, program, random.Random(seed)):
            agreed[kind] += agrees
            if not agrees:
                failed.add(kind)
    return Locality(
        kinds=frozenset(kind for kind, count in agreed.items() if count >= _MIN_TRIALS and kind not in failed)
    )


def _trials(
    writer: PromptWriter, program: Program, rng: random.Random
) -> list[tuple[tuple[bool, bool], bool]]:
    """One conversation's growth: what it took and whether window and whole agreed."""
    offered = writer.offer(program, _MARKS, [_TOOL] if rng.random() < 0.5 else [])
    turn = PromptTurn(
        tenant=TenantId(""),
        messages=(),
        before=[b""],
        offered=offered,
        program=program,
        marks=_MARKS,
        invites=True,
        continues=False,
    )
    messages, answers = _opening(rng), dict[int, RememberedAnswer]()
    whole = _extend(turn, messages)
    window, kept, text = whole, answers, _text(writer, whole, answers)
    found: list[tuple[tuple[bool, bool], bool]] = []
    thinks_at_all = rng.random() < 0.5
    for _ in range(rng.randint(2, _MAX_ROUNDS)):
        if text is None:
            return found
        new = _round(rng, with_reasoning=thinks_at_all)
        answer = _answer(rng, new)
        before, whole = whole, _extend(whole, new)
        grown = grown_turn(window, new)
        if grown is None:
            return found
        answers = {**answers, **({len(before.messages): answer} if answer else {})}
        kept = {**kept, **({len(window.messages): answer} if answer else {})}
        old_window, new_window = (
            _text(writer, window, _without(kept, len(window.messages))),
            _text(writer, grown, kept),
        )
        new_text = _text(writer, whole, answers)
        if new_text is None or old_window is None or new_window is None:
            return found
        kind = (has_reasoning(whole.messages, answers), asks(new))
        found.append((kind, _agree(writer, program.place.invitation, text, new_text, old_window, new_window)))
        text = new_text
        window, kept = cut_window(grown, kept) if rng.random() < 0.5 else (grown, kept)
    return found


def _agree(
    writer: PromptWriter, invitation: str, old: str, new: str, old_window: str, new_window: str
) -> bool:
    """Whether the window's growth is the whole's. A window that does not begin as it did tells that
    itself, and is no failure."""
    if not all(text.endswith(invitation) for text in (old, new, old_window, new_window)):
        return False
    known = old_window.removesuffix(invitation)
    if not new_window.startswith(known):
        return True
    delta = new_window[len(known) :]
    return writer.is_seam(known, delta, invitation) and old.removesuffix(invitation) + delta == new


def _without(answers: Mapping[int, RememberedAnswer], index: int) -> dict[int, RememberedAnswer]:
    return {at: answer for at, answer in answers.items() if at != index}


def _extend(turn: PromptTurn, new: Sequence[Message]) -> PromptTurn:
    messages = fold(Chat(messages=(*turn.messages, *new)))
    return replace(turn, messages=messages, before=keys_before(messages))


def _text(writer: PromptWriter, turn: PromptTurn, answers: Mapping[int, RememberedAnswer]) -> str | None:
    """The places' own numbers differ between window and whole: they are made alike here."""
    try:
        text = writer.text(turn, answers)
    except BadRequest:
        return None
    for index, answer in answers.items():
        text = text.replace(_MARKS.of_answer(index), f"qqplace{answer.header}")
        text = text.replace(_MARKS.of_reasoning(index), f"qqthought{answer.header}")
    return text


def _opening(rng: random.Random) -> list[Message]:
    question = Message(role="user", parts=(Text(text=_words(rng)),))
    if rng.random() < 0.5:
        return [question]
    return [Message(role="system", parts=(Text(text=_words(rng)),)), question]


def _round(rng: random.Random, *, with_reasoning: bool) -> list[Message]:
    """An answer, and what comes back: a question, results, or both."""
    parts: list[Part] = []
    if with_reasoning and rng.random() < 0.7:
        parts.append(Reasoning(text=_words(rng)))
    num_calls = rng.choice((0, 0, 1, 1, 2))
    if not num_calls or rng.random() < 0.5:
        parts.append(Text(text=_words(rng)))
    calls = [f"qqcall{rng.randrange(10**6):06d}" for _ in range(num_calls)]
    parts += [ToolUse(id=call, name="qqread", arguments={"qqpath": _words(rng)}) for call in calls]
    back: list[Part] = [ToolResult(tool_use_id=call, parts=(Text(text=_words(rng)),)) for call in calls]
    if not calls or rng.random() < 0.2:
        back.append(Text(text=_words(rng)))
    return [Message(role="assistant", parts=tuple(parts)), Message(role="user", parts=tuple(back))]


def _answer(rng: random.Random, new: Sequence[Message]) -> RememberedAnswer | None:
    """Half of the answers are remembered; the header tells them apart."""
    if rng.random() < 0.5:
        return None
    thinks = any(isinstance(part, Reasoning) for part in new[0].parts)
    return RememberedAnswer(header=_words(rng), tokens=token_ids([]), has_reasoning=thinks)


def _words(rng: random.Random) -> str:
    return f"qq{rng.randrange(10**6):06d}qq"
