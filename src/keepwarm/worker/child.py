"""A backend process: ready when `/ready` on its Unix socket says what it serves."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import httpx
import msgspec

from keepwarm.core.errors import ErrorOnWire, ReplicaLost
from keepwarm.worker.process import ChildProcess, keepwarm_command

BACKEND_COMMAND = keepwarm_command("backend")
_POLL_LIMIT_S = 5.0


class BackendChild(ChildProcess[dict[str, Any]]):
    """One life of one backend process. It describes itself by the fields of its description."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        *,
        command: Sequence[str] = BACKEND_COMMAND,
        on_log_line: Callable[[str], None] | None = None,
    ) -> None:
        """`settings`: those of `keepwarm backend`, among them `socket_path`."""
        super().__init__("backend", settings, command=command, on_log_line=on_log_line)

    @property
    def socket_path(self) -> str:
        return str(self._settings["socket_path"])

    @contextlib.asynccontextmanager
    async def asking(self) -> AsyncIterator[Callable[[], Awaitable[dict[str, Any] | None]]]:
        async with _client(self.socket_path) as client:
            yield lambda: _ask_ready(client)


def _client(socket_path: str) -> httpx.AsyncClient:
    transport = httpx.AsyncHTTPTransport(uds=socket_path)
    return httpx.AsyncClient(
        transport=transport, base_url="http://backend", timeout=_POLL_LIMIT_S, trust_env=False
    )


async def _ask_ready(client: httpx.AsyncClient) -> dict[str, Any] | None:
    """None: not yet."""
    try:
        answer = await client.get("/ready")
    except httpx.HTTPError:
        return None  # it does not listen yet, or has just died
    if answer.status_code != 200:
        return None
    return msgspec.msgpack.decode(answer.content, type=dict[str, Any])


async def ask_why_not_ready(socket_path: str) -> str | None:
    """A running backend's reason for not serving; None: it serves. Raises `ReplicaLost`."""
    async with _client(socket_path) as client:
        try:
            answer = await client.get("/ready")
        except httpx.HTTPError as error:
            raise ReplicaLost(f"the backend does not answer on {socket_path}: {error!r}") from error
    if answer.status_code == 200:
        return None
    error_on_wire = msgspec.msgpack.decode(answer.content, type=ErrorOnWire)
    return str(error_on_wire.fields.get("message", error_on_wire.code))
