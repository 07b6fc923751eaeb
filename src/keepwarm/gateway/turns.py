"""Turns and counts: from a body to a replica and back, and the answers that are being given."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from keepwarm.chat.events import Accepted
from keepwarm.chat.request import ChatRequest
from keepwarm.core.errors import BadRequest, NotReady
from keepwarm.core.ids import RequestId, TenantId
from keepwarm.core.principal import Principal
from keepwarm.core.session import SessionKey
from keepwarm.dialects.dialect import AnswerHead, Dialect, DialectOptions
from keepwarm.dialects.errors import UnknownModel
from keepwarm.dialects.models import count_body
from keepwarm.dialects.turn import Turn
from keepwarm.gateway.accounts import Accounts
from keepwarm.gateway.asked_in_whole import AskedInWhole
from keepwarm.gateway.cached_note import cached_headers
from keepwarm.gateway.call import Call
from keepwarm.gateway.exchange import Exchange
from keepwarm.gateway.growing_bodies import GrowingBodies, ReadBody
from keepwarm.gateway.ports import Answer, ReplicaDirectory
from keepwarm.gateway.settings import GatewaySettings
from keepwarm.gateway.sharing import sharing_circle

_LOG = logging.getLogger("keepwarm.gateway")

# What a header says outranks the body.
_SESSION_HEADERS = ("x-claude-code-session-id", "x-session-id")
_AGENT_HEADER = "x-claude-code-agent-id"
_CACHE_HEADER = "x-keepwarm-cache"
_SHUTTING_DOWN = "the server is shutting down; send the request again"


class Turns:
    """Owns the open exchanges, so that a shutdown can wait for them and then end them."""

    def __init__(self, settings: GatewaySettings, *, replicas: ReplicaDirectory, accounts: Accounts) -> None:
        self._settings = settings
        self._names = settings.names
        self._options = DialectOptions(strip_attribution=settings.strip_attribution)
        self._bodies = GrowingBodies(self._options)
        self._replicas = replicas
        self._accounts = accounts
        self._exchanges: set[Exchange] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False

    async def answer(self, call: Call, principal: Principal, dialect: Dialect) -> None:
        """Answer one turn, streamed or whole."""
        turn, answer = await self._ask(call, principal, dialect)
        head = AnswerHead(request_id=call.record.request_id, model=turn.model, created_at=int(time.time()))
        with self._open(Exchange(call, answer, self._settings)) as exchange:
            if turn.stream:
                await exchange.stream(dialect.open_stream(head, turn))
            else:
                collected = await exchange.collect()
                headers = cached_headers(call.record.cached)
                await call.reply(200, dialect.whole_answer(head, turn, collected), headers=headers)

    async def _ask(self, call: Call, principal: Principal, dialect: Dialect) -> tuple[Turn, Answer]:
        """Read the body and ask a replica. The body is let go once the replica has taken the turn."""
        session = SessionKey.of(_named_session(call), _named_agent(call))
        circle = self._circle(principal)
        read = self._bodies.read(dialect, await call.body(), circle, session)
        turn = read.turn
        self._accounts.count_unserved(dialect.NAME, turn.unserved)
        self._accounts.count_normalised(turn.normalised)
        call.record.stream = turn.stream
        self._check_open(call, turn.model)
        request = _request(call, circle, read)
        call.record.session = request.session_key
        replica = self._replicas.choose(request.session_key)
        if read.base is not None and read.base.replica is not replica:
            read = self._bodies.read_whole(dialect, read)
            request = _request(call, circle, read)
        call.record.num_known_messages = 0 if request.known is None else request.known.num_messages

        def in_whole() -> ChatRequest:
            call.record.num_known_messages = 0
            return _request(call, circle, self._bodies.read_whole(dialect, read))

        def taken(accepted: Accepted) -> None:
            if not accepted.is_known:
                return
            try:
                self._bodies.learn(dialect, read, replica)
            except Exception:  # a side gain: the next turn is read whole, and this one goes on
                _LOG.exception("a conversation could not be remembered")

        return turn, AskedInWhole(replica, request, in_whole=in_whole, taken=taken)

    async def count(self, call: Call, principal: Principal, dialect: Dialect) -> None:
        """Say how many tokens a prompt would be."""
        model, chat = dialect.parse_count(await call.body(), self._options)
        self._check_open(call, model)
        call.record.session = SessionKey.of(_named_session(call), _named_agent(call))
        replica = self._replicas.choose(call.record.session)
        num_tokens = await replica.count_tokens(self._circle(principal), chat)
        await call.reply(200, count_body(num_tokens))

    async def drain(self, limit_s: float) -> None:
        """Take no more turns; return when the open ones have ended, ending them after `limit_s`."""
        self._draining = True
        if self._exchanges:
            _LOG.info("waiting for %d answers, at most %g s", len(self._exchanges), limit_s)
        try:
            async with asyncio.timeout(limit_s):
                await self._idle.wait()
        except TimeoutError:
            _LOG.warning("ending %d answers that are not complete", len(self._exchanges))
            self.end_all()
            await self._idle.wait()

    def end_all(self) -> None:
        """End every open answer now, with its dialect's error event."""
        for exchange in tuple(self._exchanges):
            exchange.interrupt(NotReady(_SHUTTING_DOWN))

    def _circle(self, principal: Principal) -> TenantId:
        return sharing_circle(principal, share_prefixes=self._settings.share_prefixes)

    def _check_open(self, call: Call, model: str) -> None:
        if not self._names.means_served(model):
            raise UnknownModel(model, served=self._names.accepted)
        call.record.model = self._names.served
        if self._draining:
            raise NotReady(_SHUTTING_DOWN)

    @contextmanager
    def _open(self, exchange: Exchange) -> Iterator[Exchange]:
        self._exchanges.add(exchange)
        self._idle.clear()
        try:
            yield exchange
        finally:
            self._exchanges.discard(exchange)
            if not self._exchanges:
                self._idle.set()


def _request(call: Call, circle: TenantId, read: ReadBody) -> ChatRequest:
    return read.turn.request(
        known=read.known,
        request_id=RequestId(call.record.request_id),
        tenant=circle,
        session=_named_session(call),
        agent=_named_agent(call),
        use_cache=not _bypasses_cache(call),
    )


def _bypasses_cache(call: Call) -> bool:
    """Raises `BadRequest` for another word: its sender would take a cached answer for one that is not."""
    word = call.headers.get(_CACHE_HEADER, "").strip().lower()
    if word not in ("", "bypass"):
        raise BadRequest(f"{_CACHE_HEADER}: must be 'bypass' or absent, got {word[:40]!r}")
    return word == "bypass"


def _named_session(call: Call) -> str:
    found = (call.headers.get(name, "").strip() for name in _SESSION_HEADERS)
    return next((session for session in found if session), "")


def _named_agent(call: Call) -> str:
    return call.headers.get(_AGENT_HEADER, "").strip()
