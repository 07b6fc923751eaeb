"""A backend that says what a scripted replica says: what stands behind the real runtime in tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from keepwarm.chat.events import ChatEvent, Failed, Finished
from keepwarm.chat.messages import Chat
from keepwarm.chat.request import ChatRequest, ReplicaDescription
from keepwarm.contract.backend import Backend
from keepwarm.contract.runtime import BackendApp
from keepwarm.core.errors import BadRequest
from keepwarm.core.ids import TenantId
from keepwarm.gateway.http_answer import ReplicaTimeouts
from keepwarm.gateway.http_replica import HttpReplica
from tests.gateway.doors import LIMIT_S
from tests.gateway.scripted_replica import ScriptedReplica
from tests.gateway.sockets import SocketServer, listening


class ScriptedBackend(Backend):
    """Its answers are the scripted replica's."""

    def __init__(self, behind: ScriptedReplica) -> None:
        self.behind = behind
        self.count_error: BadRequest | None = None

    async def setup(self) -> None:
        pass

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        answer = self.behind.chat(request)
        try:
            while True:
                for event in await answer.next(LIMIT_S):
                    yield event
                    if isinstance(event, Finished | Failed):
                        return
        finally:
            answer.close()

    async def count_tokens(self, tenant: TenantId, chat: Chat) -> int:
        if self.count_error is not None:
            raise self.count_error
        return await self.behind.count_tokens(tenant, chat)

    def describe(self) -> ReplicaDescription:
        return ReplicaDescription(model="smol", max_model_len=8192, cache_tokens=100_000)

    def unready_reason(self) -> str | None:
        return None if self.behind.not_ready is None else str(self.behind.not_ready)

    def metrics_text(self) -> str:
        return self.behind.metrics

    async def close(self) -> None:
        pass


class Wire:
    """Both ends: a replica, and the runtime behind its socket."""

    def __init__(self, path: Path, server: SocketServer, app: BackendApp, backend: ScriptedBackend) -> None:
        self.path = path
        self.app = app
        self.backend = backend
        self.behind = backend.behind
        self.replica = HttpReplica(str(path))
        self._server = server

    def other_replica(self, timeouts: ReplicaTimeouts) -> HttpReplica:
        """Another gateway's, with limits of its own."""
        return HttpReplica(str(self.path), timeouts)

    def cut(self) -> None:
        """Every connection ends as if the backend's process had died."""
        for connection in tuple(self._server.server_state.connections):
            connection.transport.abort()

    @property
    def num_connections(self) -> int:
        return len(self._server.server_state.connections)

    async def until_nobody_is_connected(self) -> None:
        async with asyncio.timeout(LIMIT_S):
            while self._server.server_state.connections:
                await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def wire(path: Path, behind: ScriptedReplica | None = None) -> AsyncIterator[Wire]:
    """Serves while the block runs."""
    backend = ScriptedBackend(behind or ScriptedReplica())
    app = BackendApp(backend)
    app.refusal = None
    async with listening(app, path) as server:
        both = Wire(path, server, app, backend)
        try:
            yield both
        finally:
            both.replica.close()
            app.end_channels()
