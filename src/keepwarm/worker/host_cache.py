"""A process that owns host memory: ready when it has said so, in one line of JSON."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from keepwarm.worker.process import ChildProcess, keepwarm_command

HOST_CACHE_COMMAND = keepwarm_command("hostcache")
_READY_BEGINS = '{"socket_path":'


class HostCacheChild(ChildProcess[dict[str, Any]]):
    """One life of one `keepwarm hostcache`. It describes itself by the fields of its ready line."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        *,
        command: Sequence[str] = HOST_CACHE_COMMAND,
        on_log_line: Callable[[str], None] | None = None,
    ) -> None:
        """`settings`: those of `keepwarm hostcache`."""
        super().__init__("host cache", settings, command=command, on_log_line=on_log_line)
        self._ready: dict[str, Any] | None = None

    @contextlib.asynccontextmanager
    async def asking(self) -> AsyncIterator[Callable[[], Awaitable[dict[str, Any] | None]]]:
        async def ask() -> dict[str, Any] | None:
            return self._ready

        yield ask

    def hear(self, line: str) -> None:
        if self._ready is None and line.startswith(_READY_BEGINS):
            with contextlib.suppress(msgspec.DecodeError):  # a line of the log that looks alike
                self._ready = msgspec.json.decode(line, type=dict[str, Any])
                return
        super().hear(line)
