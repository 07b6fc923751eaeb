"""The backend process: puts a native backend together and serves it until its end.

The composition root of `keepwarm backend`. Its standard input belongs to whoever started it:
one line of settings, then nothing; end of file means that the starter is dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

import uvloop

from keepwarm.backend.cache_key import load_or_create_key, model_identity
from keepwarm.backend.host_feed import HostFeed
from keepwarm.backend.host_link import RecordsLink, observe
from keepwarm.backend.kept_answers import KeptAnswers
from keepwarm.backend.native import CacheNaming, NativeBackend
from keepwarm.backend.parent import stdin_belongs_to_a_parent, stdin_closed
from keepwarm.backend.rank_group import RankGroup
from keepwarm.backend.rank_process import RankProcess
from keepwarm.backend.settings import BackendSettings, decode_settings
from keepwarm.backend.words import Words
from keepwarm.chat.answer_records import AnswerRecords
from keepwarm.chat.replay import ReplayMemo
from keepwarm.contract.serve import serve_backend
from keepwarm.core.errors import BadModel, BadSetting, SetupError

logger = logging.getLogger(__name__)

_REFUSED_STATUS = 2
_FAILED_STATUS = 3


def read_settings(stream: BinaryIO) -> BackendSettings:
    """The first line of the stream, which stays open. Raises `BadSetting`."""
    return decode_settings(stream.readline())


def run_backend(settings: BackendSettings | None = None) -> int:
    """Serve until SIGTERM or the end of standard input; the exit status.

    None: the settings are the first line of standard input.

    0: ended when asked. 2: could not be started with these settings. 3: could not be started this
    time, and might be another. Then the last line on standard error, after "error: ", is the sentence
    that says why. Anything else is a crash.
    """
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # that it starts and stops, we say ourselves
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(settings or read_settings(sys.stdin.buffer)))
    except SetupError as error:
        sys.stderr.write(f"error: {error}\n")
        return _REFUSED_STATUS if isinstance(error, BadSetting | BadModel) else _FAILED_STATUS
    return 0


async def _serve(settings: BackendSettings) -> None:
    watch = stdin_closed if stdin_belongs_to_a_parent() else None
    async with _answers_kept_for(settings) as replay:
        backend = build_native_backend(settings, replay)
        await serve_backend(backend, settings.socket_path, watch)


@contextlib.asynccontextmanager
async def _answers_kept_for(settings: BackendSettings) -> AsyncIterator[ReplayMemo]:
    """The memory of answers, which outlives this process where something is there to keep it."""
    socket_path = settings.host_cache_socket
    if socket_path is None:
        yield ReplayMemo()
        return
    records = AnswerRecords(model_identity(settings.model_path, settings.dtype))
    kept = KeptAnswers(records, lambda: RecordsLink.open(socket_path))
    await kept.open()
    try:
        yield kept.memo
    finally:
        await kept.close()


def build_native_backend(settings: BackendSettings, replay: ReplayMemo | None = None) -> NativeBackend:
    """Nothing is loaded yet; `replay` may hold answers of an earlier front. Raises `BadSetting`."""
    key = load_or_create_key(Path(settings.data_dir))
    identity = model_identity(settings.model_path, settings.dtype)
    ranks = RankGroup([RankProcess(settings, hash_key=key, rank=rank) for rank in range(settings.ranks)])
    host = _host_feed(settings)
    if host is not None:
        host.watch(ranks.feed)
    return NativeBackend(
        settings,
        rank=ranks,
        load_words=lambda: _load_words(settings, replay),
        naming=CacheNaming(key=key, model_identity=identity),
        host=host,
    )


def _host_feed(settings: BackendSettings) -> HostFeed | None:
    socket_path = settings.host_cache_socket
    return None if socket_path is None else HostFeed(lambda: observe(socket_path))


def _load_words(settings: BackendSettings, replay: ReplayMemo | None) -> Words:
    if settings.engine == "scripted" and settings.script_path is None:
        from keepwarm.backend.scripted_words import ByteWords

        return ByteWords()
    from keepwarm.backend.model_words import load_model_words

    return load_model_words(
        settings.model_path,
        tool_format=settings.tool_format,
        conversation_memory_bytes=int(settings.conversation_memory_mb * 1e6),
        replay=replay,
        now=None if settings.date_shown_s is None else datetime.fromtimestamp(settings.date_shown_s),
    )
