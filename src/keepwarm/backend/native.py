"""The front of one replica with our own engine: text in, tokens to the rank, text out.

Owns the requests between their receipt and their end. Tokenising runs in threads beside
the event loop, so that a long prompt holds nobody's stream up. Knows no process and no device.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from keepwarm.backend.answer import OutputLimit
from keepwarm.backend.cache_journal import CacheJournal
from keepwarm.backend.front_turn import FrontTurn, PreparedTurn, TurnPorts
from keepwarm.backend.host_observer import HostObserver
from keepwarm.backend.journal_reader import JournalReader
from keepwarm.backend.rank_metrics import FrontCounts, metrics_text
from keepwarm.backend.rank_port import RankPort, RankView, refusal
from keepwarm.backend.settings import BackendSettings
from keepwarm.backend.words import Words
from keepwarm.chat.messages import Chat
from keepwarm.chat.request import ChatRequest, ReplicaDescription
from keepwarm.contract.backend import Tell, TellingBackend
from keepwarm.core.errors import BadRequest, ContextTooLong, NotReady
from keepwarm.core.hashing import BlockHasher, root_hash
from keepwarm.core.ids import RequestId, TenantId
from keepwarm.core.rank_messages import Ready, Submit

logger = logging.getLogger(__name__)

_NUM_WORD_THREADS = 2
"""A short prompt need not wait for a long one; more would only share the interpreter's lock."""

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheNaming:
    """What names of prefixes are salted with."""

    key: bytes
    model_identity: bytes


class NativeBackend(TellingBackend):
    """Built from its parts by `serve`; tests give it others."""

    def __init__(
        self,
        settings: BackendSettings,
        *,
        rank: RankPort,
        load_words: Callable[[], Words],
        naming: CacheNaming,
        host: HostObserver | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._rank = rank
        self._load_words = load_words
        self._naming = naming
        self._words: Words | None = None
        self._word_threads = ThreadPoolExecutor(_NUM_WORD_THREADS, thread_name_prefix="words")
        self._ports = TurnPorts(rank=rank, clock=clock, prepare=self._prepare, on_over=self._count_turn)
        self._open: dict[RequestId, FrontTurn] = {}
        self._outcomes: Counter[str] = Counter()
        self._malformed: Counter[str] = Counter()
        self._journal = CacheJournal(model=settings.model_name)
        rank.watch(self._journal)
        self._host = host
        self._hearing_host: asyncio.Task[None] | None = None
        if host is not None:
            host.watch(self._journal)

    async def setup(self) -> None:
        if self._host is not None:
            self._hearing_host = asyncio.create_task(self._host.run(), name="what host memory says")
        rank = asyncio.create_task(self._rank.start(), name="rank start")
        try:
            self._words = await self._in_thread(self._load_words)
            await rank
        finally:
            rank.cancel()
            await asyncio.gather(rank, return_exceptions=True)
        self._log_caches()

    def open_turn(self, request: ChatRequest, tell: Tell) -> FrontTurn:
        """See `TellingBackend.open_turn`. Raises `BadRequest`, `NotReady`."""
        self._refuse_unless_ready()
        if request.request_id in self._open:
            raise BadRequest(f"request id {request.request_id!r} is already open")
        turn = FrontTurn(request, ports=self._ports, tell=tell)
        self._open[request.request_id] = turn
        return turn

    async def count_tokens(self, tenant: TenantId, chat: Chat) -> int:
        self._refuse_unless_ready()
        words = self._loaded_words()
        return await self._rendering(lambda: words.count_tokens(tenant, chat))

    def describe(self) -> ReplicaDescription:
        ready, all_ready = self._ready(), self._all_ready()
        return ReplicaDescription(
            model=self._settings.model_name,
            max_model_len=_context_tokens(ready),
            cache_tokens=sum(_cache_tokens(each) for each in all_ready),
            num_ranks=len(all_ready),
            trouble=_trouble(self._rank.ranks),
        )

    def unready_reason(self) -> str | None:
        return self._rank.unready_reason()

    def refusal(self) -> NotReady | None:
        return refusal(self._rank)

    def metrics_text(self) -> str:
        counts = FrontCounts(
            num_open=len(self._open),
            outcomes=self._outcomes,
            malformed=self._malformed,
            memory_bytes={} if self._words is None else self._words.memory_bytes(),
        )
        host = None if self._host is None else self._host.view
        return metrics_text(
            self._rank.ranks,
            counts,
            is_ready=self._rank.unready_reason() is None,
            changes=self._journal.changes,
            host=host,
        )

    def watch_events(self) -> JournalReader:
        return self._journal.read()

    async def close(self) -> None:
        if self._hearing_host is not None:
            self._hearing_host.cancel()
            await asyncio.gather(self._hearing_host, return_exceptions=True)
        await self._rank.close()
        for turn in tuple(self._open.values()):  # those that no rank has been given yet
            turn.fail(NotReady("the backend is shutting down"))
        self._word_threads.shutdown(wait=False, cancel_futures=True)

    def _make_turn(self, request: ChatRequest) -> PreparedTurn:
        """Render and name the blocks; runs in a thread. Raises `BadRequest`, `ContextTooLong`."""
        words, ready = self._loaded_words(), self._ready()
        turn_words = words.open_turn(request)
        tokens = turn_words.prompt
        num_tokens, context_tokens = len(tokens), _context_tokens(ready)
        if num_tokens >= context_tokens:  # one that fills it to the last leaves no room for an answer
            raise ContextTooLong(tokens=num_tokens, limit=min(context_tokens, num_tokens - 1))
        limit = OutputLimit.within(context_tokens - num_tokens, asked_tokens=request.max_output_tokens)
        root = root_hash(self._naming.key, request.tenant, self._naming.model_identity)
        hasher = BlockHasher(key=self._naming.key, block_size=ready.block_size)
        submit = Submit(
            request_id=request.request_id,
            tokens=tokens.tobytes(),
            block_hashes=turn_words.block_names(hasher, root),
            root=root,
            max_output_tokens=limit.tokens,
            stop_tokens=words.stop_tokens,
            sampling=request.sampling,
            grammar=turn_words.grammar,
            use_cache=request.use_cache and self._settings.prefix_cache,
        )
        return PreparedTurn(words=turn_words, submit=submit, limit=limit)

    async def _prepare(self, request: ChatRequest) -> PreparedTurn:
        return await self._rendering(lambda: self._make_turn(request))

    def _count_turn(self, turn: FrontTurn, outcome: str) -> None:
        """The last of a request, however it ended."""
        del self._open[turn.request_id]
        self._outcomes[outcome] += 1
        if turn.answer is not None and turn.answer.num_malformed:
            self._malformed[self._loaded_words().tool_format] += turn.answer.num_malformed

    async def _rendering(self, job: Callable[[], _Result]) -> _Result:
        """What a request is made of is gone through by functions that call themselves. Raises
        `BadRequest` where it is deeper than they reach."""
        try:
            return await self._in_thread(job)
        except RecursionError as error:
            raise BadRequest("a tool's schema or a call's arguments are nested too deeply") from error

    async def _in_thread(self, job: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._word_threads, job)

    def _refuse_unless_ready(self) -> None:
        """Before any work is done for a request that the rank would not take."""
        refused = self.refusal()
        if refused is not None:
            raise refused

    def _loaded_words(self) -> Words:
        if self._words is None:
            raise NotReady("the tokenizer is loading")
        return self._words

    def _all_ready(self) -> list[Ready]:
        """What each rank holds that is not left stopped."""
        views = [view for view in self._rank.ranks if view.state != "degraded"]
        return [view.ready for view in views if view.ready is not None]

    def _log_caches(self) -> None:
        context_tokens = _context_tokens(self._ready())
        for rank, ready in enumerate(self._all_ready()):
            logger.info("rank %d: %s", rank, _describe_cache(ready, context_tokens))

    def _ready(self) -> Ready:
        if self._rank.ready is None:
            raise NotReady("the engine is loading")
        return self._rank.ready


def _context_tokens(ready: Ready) -> int:
    """What one conversation can use: the model's context, or a rank's whole cache where that is less."""
    return min(ready.max_model_len, _cache_tokens(ready))


def _cache_tokens(ready: Ready) -> int:
    return ready.num_blocks * ready.block_size


def _trouble(ranks: Sequence[RankView]) -> str:
    """Which ranks take no turns, "" where all do."""
    return ", ".join(f"rank {view.rank} is {view.state}" for view in ranks if view.state != "serving")


def _describe_cache(ready: Ready, session_tokens: int) -> str:
    cache_tokens = _cache_tokens(ready)
    return (
        f"L0: {ready.num_blocks:,} blocks = {cache_tokens:,} tokens = {cache_tokens // session_tokens:,} "
        f"sessions of {session_tokens:,} tokens ({ready.description})"
    )
