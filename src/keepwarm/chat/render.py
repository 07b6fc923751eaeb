"""A conversation into a prompt: exactly the ids of the whole text, at the cost of what is new.

    messages ─fold→ ─shield→ template → text ─cut→  plain text │ control token │ answer as generated
                                                     ids, memoised       id          ids, as they were

Plain text between control tokens is tokenised on its own, which equals tokenising the whole, and
remembered. Answers this model gave stand in the text as places, and their own ids take the
places' stead: so the prompt of the next turn begins with the prompt and the answer of this one.
A conversation that has only grown since its last turn is not gone through again: see `growth`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np

from keepwarm.chat.chain import chain_on, chain_root
from keepwarm.chat.control_text import unused_characters
from keepwarm.chat.conversation import fold, texts_of
from keepwarm.chat.growth import Growth
from keepwarm.chat.invitation import Invitation, Inviter, invitation_after
from keepwarm.chat.known_conversations import KnownConversation, KnownConversations
from keepwarm.chat.messages import Chat, Part, Reasoning, Text, ToolUse
from keepwarm.chat.programs import Programs
from keepwarm.chat.prompt_writer import Marks, Program, PromptTurn, PromptWriter
from keepwarm.chat.replay import RememberedAnswer, ReplayMemo, answer_key, keys_before
from keepwarm.chat.request import KnownBeginning
from keepwarm.chat.tokenizer import Tokenizer
from keepwarm.core.errors import UnknownConversation
from keepwarm.core.hashing import BlockHasher
from keepwarm.core.ids import BlockHash, TenantId, TokenIds, token_ids

DEFAULT_CONVERSATION_BYTES = 1_024_000_000
"""170M tokens of conversations: 100 of 450,000 take 280 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedPrompt:
    """`num_replayed_tokens` of the tokens are answers as they were generated."""

    tokens: TokenIds
    num_replayed_tokens: int
    invitation: Invitation | None
    """None where an answer could not be found again in the template's text."""
    known: KnownConversation | None = None
    """What the next turn need not go through again."""

    def block_names(self, hasher: BlockHasher, root: BlockHash) -> bytes:
        """Names of the prompt's full blocks, end to end; known ones are not made again."""
        if self.known is None:
            return hasher.extend_joined(root, self.tokens)
        return self.known.block_names(hasher, root, self.tokens)


class ChatRenderer:
    """One model's renderer, with its memories. Threads may share it; rendering is pure CPU."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        now: datetime | None = None,
        segment_memo_bytes: int = 256 << 20,
        replay: ReplayMemo | None = None,
        conversation_memo_bytes: int = DEFAULT_CONVERSATION_BYTES,
    ) -> None:
        """`replay` may hold answers of an earlier process. `now` is what a template's `strftime_now`
        shows, for as long as this renderer lives: a date that moved on would turn every
        conversation's prefix. Raises `BadModel`."""
        self._tokenizer = tokenizer
        self._writer = PromptWriter(tokenizer, segment_memo_bytes=segment_memo_bytes)
        self._replay = ReplayMemo() if replay is None else replay
        self._inviter = Inviter(self._writer, tokenizer)
        self._growth = Growth(self._writer)
        self._known = KnownConversations(max_bytes=conversation_memo_bytes)
        self._programs = Programs(tokenizer, self._writer, now=now, lets_grow=conversation_memo_bytes > 0)

    @property
    def remembers_conversations(self) -> bool:
        """Whether there are conversations of which the beginning may be left out."""
        return bool(self.program.locality.kinds)

    def memory_bytes(self) -> dict[str, int]:
        """Held now, by what it holds."""
        return {
            "conversations": self._known.held_bytes,
            "segments": self._writer.segments.held_bytes,
            "answers": self._replay.held_bytes,
        }

    @property
    def program(self) -> Program:
        """What was learnt of the template that writes conversations with tools."""
        return self._programs.choose(with_tools=True)

    def render(
        self,
        tenant: TenantId,
        chat: Chat,
        *,
        known: KnownBeginning | None = None,
        reasoning: bool | None = None,
        add_generation_prompt: bool = True,
    ) -> RenderedPrompt:
        """The prompt that asks for the next answer; when the last message is the assistant's, the
        prompt that asks to continue it. `known` stands before the chat's messages;
        `reasoning` is for templates that let one say whether to think, None is their own default.

        Raises `BadRequest` with what the template has against the conversation, and
        `UnknownConversation` where it takes the whole of it.
        """
        chains = chain_on(chain_root(chat.tools) if known is None else known.chain, chat.messages)
        program = self._programs.choose(with_tools=bool(chat.tools), reasoning=reasoning)
        names = [program.name + chain for chain in chains]
        prompt = self._grown(tenant, chat, names) if add_generation_prompt else None
        if prompt is not None:
            return prompt
        if known is not None:
            raise UnknownConversation("the beginning of this conversation is not known any more")
        turn = self._open(tenant, chat, program, invites=add_generation_prompt)
        return self._whole(turn, names[-1])

    def _grown(self, tenant: TenantId, chat: Chat, names: Sequence[bytes]) -> RenderedPrompt | None:
        """From the longest beginning that is known; None where none helps. `names` are those of the
        conversation before each of the chat's messages, and of the whole."""
        for index in range(len(names) - 1, -1, -1):
            known = self._known.get(tenant, names[index])
            if known is None:
                continue
            grown = self._growth.grow(known, chat.messages[index:], self._recall)
            if grown is None:
                return None
            self._known.put(tenant, names[-1], grown.known, grew_from=names[index])
            return RenderedPrompt(
                tokens=grown.tokens,
                num_replayed_tokens=grown.known.num_replayed_tokens,
                invitation=invitation_after(grown.known.turn),
                known=grown.known,
            )
        return None

    def _whole(self, turn: PromptTurn, name: bytes) -> RenderedPrompt:
        answers = dict(self._recall(turn, 0))
        pieces, failed = self._writer.pieces(turn, self._writer.text(turn, answers), answers)
        if failed:  # the template hid some: those as plain text
            answers = {index: answer for index, answer in answers.items() if index not in failed}
            pieces, failed = self._writer.pieces(turn, self._writer.text(turn, answers), answers)
        if failed:
            answers = {}
            pieces, _ = self._writer.pieces(turn, self._writer.text(turn, answers), answers)
        tokens, invitation = self._inviter.tokenise(turn, pieces, answers)
        prompt = RenderedPrompt(
            tokens=tokens,
            num_replayed_tokens=sum(len(answer.tokens) for answer in answers.values()),
            invitation=invitation,
        )
        if not turn.program.locality.kinds:
            return prompt
        known = self._growth.first(turn, answers, prompt.tokens)
        if known is None:
            return prompt
        self._known.put(turn.tenant, name, known, grew_from=None)
        return replace(prompt, known=known)

    def remember(
        self, tenant: TenantId, prompt: RenderedPrompt, parts: Sequence[Part], tokens: Sequence[int]
    ) -> None:
        """Keep what the model generated for this prompt. `parts` is the answer as the client got
        it, `tokens` what it was made of; stop tokens at the end are the template's to write."""
        invitation = prompt.invitation
        if invitation is None:
            return
        ids = list(tokens)
        while ids and ids[-1] in self._tokenizer.stop_tokens:
            ids.pop()
        key = answer_key(invitation.before, (Text(text=invitation.prefill), *parts))
        if key is None:
            return
        answer = RememberedAnswer(
            header=invitation.header,
            tokens=np.concatenate([invitation.prefill_tokens, token_ids(ids)]),
            has_reasoning=any(isinstance(part, Reasoning) for part in parts),
        )
        self._replay.put(tenant, key, answer)

    def _open(self, tenant: TenantId, chat: Chat, program: Program, *, invites: bool) -> PromptTurn:
        messages = fold(chat)
        shield, place = unused_characters(texts_of(chat), 2)
        marks = Marks(shield=shield, place=place)
        last = messages[-1] if messages else None
        continues = (
            last is not None
            and last.role == "assistant"
            and not any(isinstance(part, ToolUse) for part in last.parts)
        )
        return PromptTurn(
            tenant=tenant,
            messages=messages,
            before=keys_before(messages),
            offered=self._writer.offer(program, marks, chat.tools),
            program=program,
            marks=marks,
            invites=invites,
            continues=invites and continues,
        )

    def _recall(self, turn: PromptTurn, first: int) -> Mapping[int, RememberedAnswer]:
        """The remembered answers among the messages from `first` on, by index.

        Asked for from the last to the first, so that the first is the last to be forgotten.
        """
        if not turn.program.place.closes:
            return {}
        found = {}
        for index in range(len(turn.messages) - 1, first - 1, -1):
            message = turn.messages[index]
            key = answer_key(turn.before[index], message.parts) if message.role == "assistant" else None
            answer = self._replay.get(turn.tenant, key) if key else None
            if answer is None or (message is turn.begun and not self._ends_as(answer, message.text())):
                continue
            found[index] = answer
        return dict(sorted(found.items()))

    def _ends_as(self, answer: RememberedAnswer, text: str) -> bool:
        """Whether white space at the end is the same, which a key does not tell: the model goes on
        from there, and the client puts what comes at the end of what it has."""
        said = self._tokenizer.decode(answer.tokens)
        return said[len(said.rstrip()) :] == text[len(text.rstrip()) :]
