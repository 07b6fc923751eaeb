"""A conversation into a prompt: exactly the ids of the whole text, at the cost of what is new.

    messages ─fold→ ─shield→ template → text ─cut→  plain text │ control token │ answer as generated
                                                     ids, memoised       id          ids, as they were

Plain text between control tokens is tokenised on its own, which equals tokenising the whole, and
remembered. Answers this model gave stand in the text as places, and their own ids take the
places' stead: so the prompt of the next turn begins with the prompt and the answer of this one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from keepwarm.chat.answer_place import AnswerPlace, learn_answer_place, learn_form
from keepwarm.chat.control_text import unused_characters
from keepwarm.chat.conversation import fold, texts_of
from keepwarm.chat.memo import BoundedMemo
from keepwarm.chat.messages import Chat, Message, Part, Text, ToolUse
from keepwarm.chat.replay import RememberedAnswer, ReplayMemo, answer_key, keys_before
from keepwarm.chat.template import PLAIN_TEMPLATE, ChatTemplate
from keepwarm.chat.template_messages import MessageForm, MessageWriter
from keepwarm.chat.tokenizer import Tokenizer
from keepwarm.core.errors import BadRequest
from keepwarm.core.ids import TenantId, TokenIds, token_ids

_SEGMENT_BYTES = 200  # key and bookkeeping of one remembered segment, besides its ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """Where in its conversation the answer to a prompt will stand; for `ChatRenderer.remember`."""

    before: bytes
    header: str
    prefill: str = ""
    prefill_tokens: TokenIds


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedPrompt:
    """`num_replayed_tokens` of the tokens are answers as they were generated."""

    tokens: TokenIds
    num_replayed_tokens: int
    invitation: Invitation | None
    """None where an answer could not be found again in the template's text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Program:
    """A template and what was learnt of it."""

    template: ChatTemplate
    form: MessageForm
    place: AnswerPlace


@dataclass(frozen=True, slots=True, kw_only=True)
class _Marks:
    """Two characters that occur nowhere in the conversation."""

    shield: str
    place: str

    def of_answer(self, index: int) -> str:
        return f"{self.place}{index}{self.place}"

    @property
    def prefill_start(self) -> str:
        return f"{self.place}s{self.place}"

    @property
    def prefill_end(self) -> str:
        return f"{self.place}e{self.place}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    """One conversation on its way to a prompt."""

    tenant: TenantId
    chat: Chat
    messages: tuple[Message, ...]
    before: Sequence[bytes]
    program: _Program
    marks: _Marks
    invites: bool
    continues: bool
    """The last message is the beginning of the answer."""

    @property
    def begun(self) -> Message | None:
        """That last message."""
        return self.messages[-1] if self.continues else None


_Piece = str | TokenIds


class ChatRenderer:
    """One model's renderer, with its memories. Threads may share it; rendering is pure CPU."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        now: datetime | None = None,
        segment_memo_bytes: int = 256 << 20,
        replay_bytes_per_tenant: int = 64 << 20,
    ) -> None:
        """`now` is what a template's `strftime_now` shows, for as long as this renderer lives: a
        date that moved on would turn every conversation's prefix. Raises `BadModel`."""
        self._tokenizer = tokenizer
        self._segments: BoundedMemo[bytes, TokenIds] = BoundedMemo(max_bytes=segment_memo_bytes)
        self._replay = ReplayMemo(max_bytes_per_tenant=replay_bytes_per_tenant)
        stops = "|".join(re.escape(text) for text in tokenizer.stop_texts())
        self._stop_pattern = re.compile(stops or "(?!)")
        self._control_ids = _ControlIds()
        default = self._learn(tokenizer.chat_template or PLAIN_TEMPLATE, now)
        self._programs = {"default": default}
        if "tool_use" in tokenizer.chat_templates:
            self._programs["tool_use"] = self._learn(tokenizer.chat_templates["tool_use"], now)

    def render(self, tenant: TenantId, chat: Chat, *, add_generation_prompt: bool = True) -> RenderedPrompt:
        """The prompt that asks for the next answer; when the last message is the assistant's, the
        prompt that asks to continue it.

        Raises `BadRequest` with what the template has against the conversation.
        """
        turn = self._open(tenant, chat, add_generation_prompt)
        answers = self._recall(turn)
        text, failed = self._render_text(turn, answers)
        if failed:  # the template hid some: those as plain text
            answers = {index: answer for index, answer in answers.items() if index not in failed}
            text, failed = self._render_text(turn, answers)
        if failed:
            answers = {}
            text, _ = self._render_text(turn, answers)
        return self._tokenise(turn, text, answers)

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
        whole = np.concatenate([invitation.prefill_tokens, token_ids(ids)])
        self._replay.put(tenant, key, RememberedAnswer(header=invitation.header, tokens=whole))

    def _learn(self, source: str, now: datetime | None) -> _Program:
        tokenizer = self._tokenizer
        variables = {
            "bos_token": tokenizer.bos_token,
            "eos_token": tokenizer.eos_token,
            "opening": tokenizer.bos_token if tokenizer.adds_bos else "",
        }
        template = ChatTemplate(source, variables=variables, now=now)
        form = learn_form(template)
        place = learn_answer_place(template, form, tokenizer.control, tokenizer.stop_tokens)
        return _Program(template=template, form=form, place=place)

    def _open(self, tenant: TenantId, chat: Chat, invites: bool) -> _Turn:
        messages = fold(chat)
        shield, place = unused_characters(texts_of(chat), 2)
        last = messages[-1] if messages else None
        continues = (
            last is not None
            and last.role == "assistant"
            and not any(isinstance(part, ToolUse) for part in last.parts)
        )
        use_tools = bool(chat.tools) and "tool_use" in self._programs
        return _Turn(
            tenant=tenant,
            chat=chat,
            messages=messages,
            before=keys_before(messages),
            program=self._programs["tool_use" if use_tools else "default"],
            marks=_Marks(shield=shield, place=place),
            invites=invites,
            continues=invites and continues,
        )

    def _recall(self, turn: _Turn) -> dict[int, RememberedAnswer]:
        """The remembered answers among the messages, by index.

        Asked for from the last to the first, so that the first is the last to be forgotten.
        """
        if not turn.program.place.closes:
            return {}
        found = {}
        for index in range(len(turn.messages) - 1, -1, -1):
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

    def _render_text(
        self, turn: _Turn, answers: Mapping[int, RememberedAnswer]
    ) -> tuple[list[_Piece], set[int]]:
        """The text with answers in their places, and the indices whose place was not found."""
        text = self._apply_template(turn, answers)
        pieces: list[_Piece] = []
        failed: set[int] = set()
        at = 0
        for index, answer in answers.items():
            span = self._span_of_answer(turn, text, at, index)
            if span is None:
                failed.add(index)
                continue
            pieces += [text[at : span[0]] + answer.header, answer.tokens]
            at = span[1]
        pieces.append(text[at:])
        return pieces, failed

    def _apply_template(self, turn: _Turn, answers: Mapping[int, RememberedAnswer]) -> str:
        marks, last = turn.marks, len(turn.messages) - 1
        places = {index: marks.of_answer(index) for index in answers}

        def shield(text: str) -> str:
            return self._tokenizer.control.shield(text, marks.shield)

        if turn.continues and last not in places:
            text = shield(turn.messages[last].text())
            places[last] = marks.prefill_start + text + marks.prefill_end
        writer = MessageWriter(turn.program.form, shield=shield, places=places)
        return turn.program.template.render(
            writer.messages(turn.messages, turn.chat.tools),
            tools=writer.tools(turn.chat.tools),
            add_generation_prompt=turn.invites and not turn.continues,
        )

    def _span_of_answer(self, turn: _Turn, text: str, since: int, index: int) -> tuple[int, int] | None:
        """From the answer's header to the stop token after it, or to the end if it is continued."""
        found = text.find(turn.marks.of_answer(index), since)
        if found < 0:
            return None
        place = turn.program.place
        start = place.start(text, since, found)
        if start is None:
            return None
        if turn.continues and index == len(turn.messages) - 1:
            return start, len(text)
        stop = self._stop_pattern.search(text, found)
        if stop is None or (place.opening and text.find(place.opening, found, stop.start()) >= 0):
            return None
        return start, stop.start()

    def _tokenise(
        self, turn: _Turn, pieces: list[_Piece], answers: Mapping[int, RememberedAnswer]
    ) -> RenderedPrompt:
        last = len(turn.messages) - 1
        tail = pieces[-1]
        assert isinstance(tail, str)
        if turn.continues and last not in answers:
            head, prefill = _cut_at_prefill(tail, turn.marks)
            tokens = self._encode(turn, [*pieces[:-1], head + prefill])
            invitation = self._invite_to_continue(turn, [*pieces[:-1], head], tokens)
        else:
            tokens = self._encode(turn, pieces)
            invitation = self._invite(turn, tail, answers.get(last))
        replayed = sum(len(answer.tokens) for answer in answers.values())
        return RenderedPrompt(tokens=tokens, num_replayed_tokens=replayed, invitation=invitation)

    def _invite(self, turn: _Turn, tail: str, begun: RememberedAnswer | None) -> Invitation | None:
        place = turn.program.place
        if begun is not None and turn.continues:
            return Invitation(
                before=turn.before[-2],
                header=begun.header,
                prefill=turn.messages[-1].text(),
                prefill_tokens=begun.tokens,
            )
        if not (place.closes and turn.invites and tail.endswith(place.invitation)):
            return None
        return Invitation(before=turn.before[-1], header=place.invitation, prefill_tokens=token_ids([]))

    def _invite_to_continue(self, turn: _Turn, head: list[_Piece], tokens: TokenIds) -> Invitation | None:
        """Only where the begun answer's ids can be told from the prompt's before it.

        The answer's first token may reach into the header (a space before its first word); then
        the header that is remembered ends before that token.
        """
        *earlier, tail = head
        assert isinstance(tail, str)
        start = turn.program.place.start(tail, 0, len(tail))
        before = self._encode(turn, head)
        num_shared = _num_equal(before, tokens)
        prefill = turn.messages[-1].text()
        if start is not None and num_shared < len(before):
            reached = self._tokenizer.decode_bytes(tokens[num_shared:]).decode("utf-8", "replace")
            tail = tail.removesuffix(reached.removesuffix(prefill))
            before = self._encode(turn, [*earlier, tail])
        if start is None or start > len(tail) or _num_equal(before, tokens) < len(before):
            return None
        return Invitation(
            before=turn.before[-2],
            header=tail[start:],
            prefill=prefill,
            prefill_tokens=tokens[len(before) :],
        )

    def _encode(self, turn: _Turn, pieces: Sequence[_Piece]) -> TokenIds:
        parts = list(self._encoded_parts(turn, pieces))
        return np.concatenate(parts) if parts else token_ids([])

    def _encoded_parts(self, turn: _Turn, pieces: Sequence[_Piece]) -> Iterator[TokenIds]:
        opening = True
        for piece in pieces:
            if not isinstance(piece, str):
                yield piece
                continue
            for segment in self._tokenizer.control.cut(piece):
                if isinstance(segment, int):
                    yield self._control_ids[segment]
                elif text := segment.replace(turn.marks.shield, ""):
                    yield self._encode_segment(turn.tenant, text, opening)
                opening = False

    def _encode_segment(self, tenant: TenantId, text: str, opening: bool) -> TokenIds:
        """A tenant's own memory: another's must not show in how long this takes."""
        salt = f"{tenant}\0{opening}".encode()
        key = hashlib.blake2b(text.encode(), digest_size=16, key=hashlib.sha256(salt).digest()).digest()
        ids = self._segments.get(key)
        if ids is None:
            ids = self._tokenizer.encode(text, after_control_token=not opening)
            self._segments.put(key, ids, ids.nbytes + _SEGMENT_BYTES)
        return ids


class _ControlIds(dict[int, TokenIds]):
    """Each control token's id as an array of one."""

    def __missing__(self, token: int) -> TokenIds:
        self[token] = ids = token_ids([token])
        return ids


def _num_equal(one: TokenIds, other: TokenIds) -> int:
    """How many ids both begin with."""
    length = min(len(one), len(other))
    different = np.flatnonzero(one[:length] != other[:length])
    return int(different[0]) if len(different) else length


def _cut_at_prefill(text: str, marks: _Marks) -> tuple[str, str]:
    """What stands before the begun answer, and the answer; what follows it is left out."""
    head, start, rest = text.partition(marks.prefill_start)
    prefill, end, _ = rest.partition(marks.prefill_end)
    if not start or not end:
        raise BadRequest("this model's chat template cannot continue an assistant message")
    return head, prefill
