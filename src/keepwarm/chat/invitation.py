"""The end of a prompt: where its answer will stand, so that the answer is known when it comes back.

An answer that was begun is continued: its beginning stands at the prompt's end, without what the
template writes after it, and its ids become the first of the answer's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from keepwarm.chat.prompt_writer import Marks, Piece, PromptTurn, PromptWriter
from keepwarm.chat.replay import RememberedAnswer
from keepwarm.chat.tokenizer import Tokenizer
from keepwarm.core.errors import BadRequest
from keepwarm.core.ids import TokenIds, token_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """Where in its conversation the answer to a prompt will stand; for `ChatRenderer.remember`."""

    before: bytes
    header: str
    prefill: str = ""
    prefill_tokens: TokenIds


class Inviter:
    """One model's. Threads may share it."""

    def __init__(self, writer: PromptWriter, tokenizer: Tokenizer) -> None:
        self._writer = writer
        self._tokenizer = tokenizer

    def tokenise(
        self, turn: PromptTurn, pieces: list[Piece], answers: Mapping[int, RememberedAnswer]
    ) -> tuple[TokenIds, Invitation | None]:
        """The prompt's ids; no invitation where an answer could not be found again. Raises `BadRequest`."""
        last = len(turn.messages) - 1
        tail = pieces[-1]
        assert isinstance(tail, str)
        if turn.continues and last not in answers:
            head, prefill = _cut_at_prefill(tail, turn.marks)
            tokens = self._writer.encode(turn, [*pieces[:-1], head + prefill])
            invitation = self._invite_to_continue(turn, [*pieces[:-1], head], tokens)
        else:
            tokens = self._writer.encode(turn, pieces)
            invitation = self._invite(turn, tail, answers.get(last))
        return tokens, invitation

    def _invite(self, turn: PromptTurn, tail: str, begun: RememberedAnswer | None) -> Invitation | None:
        if begun is not None and turn.continues:
            return Invitation(
                before=turn.before[-2],
                header=begun.header,
                prefill=turn.messages[-1].text(),
                prefill_tokens=begun.tokens,
            )
        if not (turn.invites and tail.endswith(turn.program.place.invitation)):
            return None
        return invitation_after(turn)

    def _invite_to_continue(self, turn: PromptTurn, head: list[Piece], tokens: TokenIds) -> Invitation | None:
        """Only where the begun answer's ids can be told from the prompt's before it.

        The answer's first token may reach into the header (a space before its first word); then
        the header that is remembered ends before that token.
        """
        *earlier, tail = head
        assert isinstance(tail, str)
        start = turn.program.place.start(tail, 0, len(tail))
        before = self._writer.encode(turn, head)
        num_shared = num_equal(before, tokens)
        prefill = turn.messages[-1].text()
        if start is not None and num_shared < len(before):
            reached = self._tokenizer.decode_bytes(tokens[num_shared:]).decode("utf-8", "replace")
            tail = tail.removesuffix(reached.removesuffix(prefill))
            before = self._writer.encode(turn, [*earlier, tail])
        if start is None or start > len(tail) or num_equal(before, tokens) < len(before):
            return None
        return Invitation(
            before=turn.before[-2],
            header=tail[start:],
            prefill=prefill,
            prefill_tokens=tokens[len(before) :],
        )


def invitation_after(turn: PromptTurn) -> Invitation | None:
    """To answer the whole turn; None where nothing tells where an answer ends."""
    place = turn.program.place
    if not place.closes:
        return None
    return Invitation(before=turn.before[-1], header=place.invitation, prefill_tokens=token_ids([]))


def num_equal(one: TokenIds, other: TokenIds) -> int:
    """How many ids both begin with."""
    length = min(len(one), len(other))
    different = np.flatnonzero(one[:length] != other[:length])
    return int(different[0]) if len(different) else length


def _cut_at_prefill(text: str, marks: Marks) -> tuple[str, str]:
    """What stands before the begun answer, and the answer; what follows it is left out."""
    head, start, rest = text.partition(marks.prefill_start)
    prefill, end, _ = rest.partition(marks.prefill_end)
    if not start or not end:
        raise BadRequest("this model's chat template cannot continue an assistant message")
    return head, prefill
