"""Bodies that begin as an earlier one did: read, and passed on, from where they differ.

    body:       {…, "messages": [ m0, m1, … mk ┊ mk+1, … mn ], …}
                 ├──── seen before, by its digest ─┤
    read:       {…, "messages": [               mk+1, … mn ], …}

An agent sends its whole conversation again on every turn. What was read of it before has a name
(`chat.chain`), under which the replica knows it too; the rest is parsed as a body of its own. The
last few messages are always read again, since clients move their cache marks among them. Wherever
anything does not fit, the body is read whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from blake3 import blake3

from keepwarm.chat.chain import chain_on, chain_root
from keepwarm.chat.memo import BoundedMemo
from keepwarm.chat.messages import Message, ToolSpec
from keepwarm.chat.request import KnownBeginning
from keepwarm.core.errors import BadRequest
from keepwarm.core.ids import TenantId
from keepwarm.core.session import SessionKey
from keepwarm.dialects.dialect import Dialect, DialectOptions
from keepwarm.dialects.turn import Turn

_READ_AGAIN = 3
"""Messages at the end of a body that its successor may spell differently."""
_MIN_KNOWN_BYTES = 16_384
"""Less is read in no time."""
_MAX_BYTES = 64 << 20
"""Of all sessions together; the least recently used goes first."""
_BEGINNING_BYTES = 1500  # names, digests and objects of one, besides the tools it found
_BEGINNINGS_A_SESSION = 4
_OPENING_BYTES = 2048
_CHECKED_FIRST_BYTES = 64

_TOP = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST = msgspec.json.Decoder(list[msgspec.Raw])

_Key = tuple[TenantId, str, SessionKey | bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Beginning:
    """`body[:end]`, which ends with a message, as one replica knows it."""

    replica: object
    first: int
    """Where the list's first message begins."""
    end: int
    digest: bytes
    last_bytes: bytes
    lead: bytes
    """The chain's name after the tools and what stands before the list."""
    known: KnownBeginning
    found_tools: tuple[ToolSpec, ...]
    """Told within it, as they were told."""
    unknown_references: frozenset[str]
    """Names it may refer to that no tool had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBody:
    """A body read, perhaps without its beginning."""

    body: bytes
    turn: Turn
    """Its chat holds what follows `known`."""
    key: _Key
    base: _Beginning | None = None
    rest: int = 0
    """Where the message after the beginning starts."""

    @property
    def known(self) -> KnownBeginning | None:
        return None if self.base is None else self.base.known


class GrowingBodies:
    """One gateway's. Single-threaded: the event loop's."""

    def __init__(self, options: DialectOptions, *, max_bytes: int = _MAX_BYTES) -> None:
        self._options = options
        self._sessions: BoundedMemo[_Key, tuple[_Beginning, ...]] = BoundedMemo(max_bytes=max_bytes)

    def read(self, dialect: Dialect, body: bytes, tenant: TenantId, session: SessionKey) -> ReadBody:
        """Raises `BadRequest`, as the dialect does for the whole body."""
        key = (tenant, dialect.NAME, session if session.session else _opening(body))
        for base in self._sessions.get(key) or ():
            rest = _rest(body, base)
            turn = None if rest is None else self._read_rest(dialect, body, base, rest)
            if rest is not None and turn is not None:
                return ReadBody(body=body, turn=turn, key=key, base=base, rest=rest)
        return ReadBody(body=body, turn=dialect.parse_turn(body, self._options), key=key)

    def read_whole(self, dialect: Dialect, read: ReadBody) -> ReadBody:
        """The same body without a shortcut, for a replica that knows the beginning no more."""
        turn = dialect.parse_turn(read.body, self._options)
        return ReadBody(body=read.body, turn=turn, key=read.key)

    def learn(self, dialect: Dialect, read: ReadBody, replica: object) -> None:
        """The replica knows this conversation now: what follows it need not bring it again."""
        if len(read.body) < _MIN_KNOWN_BYTES or not read.turn.may_be_shortened:
            return
        beginning = self._beginning(dialect, read, replica)
        if beginning is None:
            return
        others = tuple(each for each in self._sessions.get(read.key) or () if each is not read.base)
        beginnings = (beginning, *others)[:_BEGINNINGS_A_SESSION]
        self._sessions.put(read.key, beginnings, sum(map(_size_bytes, beginnings)))

    def _read_rest(self, dialect: Dialect, body: bytes, base: _Beginning, rest: int) -> Turn | None:
        """What comes after the beginning; None where that alone does not say all."""
        shortened = body[: base.first] + body[rest:]
        turn = self._parsed(dialect, shortened)
        if turn is None:
            return None  # the whole body's error names the right message
        if not turn.may_be_shortened or _lead_chain(turn) != base.lead:
            return None
        if not _is_last_list(shortened, dialect.LIST_FIELD, base.first) or not _tells_alike(turn, base):
            return None
        chat = turn.chat
        messages = chat.messages[turn.num_lead_messages :]
        found_tools = _united(base.found_tools, chat.found_tools)
        return replace(turn, chat=msgspec.structs.replace(chat, messages=messages, found_tools=found_tools))

    def _beginning(self, dialect: Dialect, read: ReadBody, replica: object) -> _Beginning | None:
        """All but the last messages; None where they cannot be told apart."""
        turn, base = read.turn, read.base
        shortened = read.body if base is None else read.body[: base.first] + read.body[read.rest :]
        shift = len(read.body) - len(shortened)
        spans = _spans(shortened, dialect.LIST_FIELD)
        lead = turn.num_lead_messages if base is None else 0
        messages = turn.chat.messages[lead:]
        kept = self._kept(dialect, shortened, spans, messages)
        if kept is None:
            return None
        num_elements, num_messages = kept
        found_tools = self._told_in(dialect, _cut(shortened, spans, num_elements), turn)
        if found_tools is None:
            return None
        chain = _lead_chain(turn) if base is None else base.known.chain
        num_before = turn.num_lead_messages if base is None else base.known.num_messages
        end = spans[num_elements - 1][1] + shift
        return _Beginning(
            replica=replica,
            first=spans[0][0] if base is None else base.first,
            end=end,
            digest=_digest(memoryview(read.body)[:end]),
            last_bytes=read.body[max(0, end - _CHECKED_FIRST_BYTES) : end],
            lead=_lead_chain(turn) if base is None else base.lead,
            known=KnownBeginning(
                chain=chain_on(chain, messages[:num_messages])[-1], num_messages=num_before + num_messages
            ),
            found_tools=found_tools if base is None else _united(base.found_tools, found_tools),
            unknown_references=turn.unknown_references.union(base.unknown_references if base else ()),
        )

    def _kept(
        self, dialect: Dialect, body: bytes, spans: Sequence[tuple[int, int]], messages: Sequence[Message]
    ) -> tuple[int, int] | None:
        """How many of the list's elements to keep, and how many messages they are by themselves."""
        most = len(spans) - _READ_AGAIN
        if most < 1:
            return None
        if len(spans) == len(messages):
            return most, most
        for num_elements in range(most, max(0, most - _READ_AGAIN), -1):  # one message may be of several
            turn = self._parsed(dialect, _cut(body, spans, num_elements))
            alone = () if turn is None else turn.chat.messages[turn.num_lead_messages :]
            if alone and tuple(messages[: len(alone)]) == alone:
                return num_elements, len(alone)
        return None

    def _told_in(self, dialect: Dialect, cut: bytes, turn: Turn) -> tuple[ToolSpec, ...] | None:
        """Of the tools that a turn tells, those of its beginning, which is cut off; None where that
        cannot be read by itself."""
        if not turn.chat.found_tools:
            return ()
        alone = self._parsed(dialect, cut)
        return None if alone is None else alone.chat.found_tools

    def _parsed(self, dialect: Dialect, body: bytes) -> Turn | None:
        try:
            return dialect.parse_turn(body, self._options)
        except BadRequest:
            return None


def _size_bytes(beginning: _Beginning) -> int:
    """Its tools are counted in every beginning, though those of a session may share them."""
    tools = sum(len(tool.description) + len(str(tool.parameters)) for tool in beginning.found_tools)
    return _BEGINNING_BYTES + 2 * tools


def _rest(body: bytes, base: _Beginning) -> int | None:
    """Where the message after the beginning starts; None where there is none, or another beginning."""
    if body[base.end - len(base.last_bytes) : base.end] != base.last_bytes:
        return None
    comma = _skip_space(body, base.end)
    if body[comma : comma + 1] != b"," or _digest(memoryview(body)[: base.end]) != base.digest:
        return None
    return comma + 1


def _is_last_list(body: bytes, field: str, first: int) -> bool:
    """Whether no other list of this name comes after the one whose first element is there: of
    several the last counts."""
    raw = _list_in(body, field)
    return raw is not None and _address(raw) - _address(body) < first


def _tells_alike(turn: Turn, base: _Beginning) -> bool:
    """Whether this body means the same by the names of tools that the beginning refers to."""
    if not base.found_tools and not base.unknown_references:
        return True
    deferred = {tool.name: tool for tool in turn.deferred_tools}
    told_alike = all(deferred.get(tool.name) == tool for tool in base.found_tools)
    return told_alike and base.unknown_references.isdisjoint(deferred)


def _united(one: Sequence[ToolSpec], other: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
    return tuple({tool.name: tool for tool in (*one, *other)}.values())


def _cut(body: bytes, spans: Sequence[tuple[int, int]], num_elements: int) -> bytes:
    """The body with no more than so many elements in its list."""
    return body[: spans[num_elements - 1][1]] + body[spans[-1][1] :]


def _lead_chain(turn: Turn) -> bytes:
    lead: Sequence[Message] = turn.chat.messages[: turn.num_lead_messages]
    return chain_on(chain_root(turn.chat.tools), lead)[-1]


def _spans(body: bytes, field: str) -> list[tuple[int, int]]:
    """Where each element of a top-level list lies in the body; empty where that cannot be told."""
    raw = _list_in(body, field)
    if raw is None:
        return []
    origin = _address(body)
    try:
        elements = _LIST.decode(raw)
    except msgspec.DecodeError:
        return []
    spans = [(_address(each) - origin, _address(each) - origin + len(memoryview(each))) for each in elements]
    if any(not 0 <= start <= end <= len(body) for start, end in spans):
        return []  # copies, not places
    return spans


def _list_in(body: bytes, field: str) -> msgspec.Raw | None:
    """The top-level list of this name, of several the last; None also for a body that was mended
    before it could be read (`dialects.body`): places in it are not places here."""
    try:
        raw = _TOP.decode(body).get(field)
    except msgspec.DecodeError:
        return None
    return raw if raw is not None and bytes(memoryview(raw)[:1]) == b"[" else None


def _address(buffer: bytes | msgspec.Raw) -> int:
    address: int = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
    return address


def _skip_space(body: bytes, at: int) -> int:
    while body[at : at + 1] in (b" ", b"\n", b"\t", b"\r"):
        at += 1
    return at


def _opening(body: bytes) -> bytes:
    """Stands for the session of clients that name none."""
    return _digest(memoryview(body)[:_OPENING_BYTES])


def _digest(piece: memoryview) -> bytes:
    return blake3(piece).digest(16)
