"""One server in this process: socket, host cache, backend, gateway; up in that order, down in the reverse.

Owns the order and the waits. What to print and when to stop is the command's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from keepwarm.chat.request import ReplicaDescription
from keepwarm.cli.listening import listen, url_of
from keepwarm.cli.model_choice import choose_model
from keepwarm.cli.serve_settings import ServeSettings, backend_settings
from keepwarm.cli.served_processes import backend_process, host_cache_process, kept, served_by
from keepwarm.control.keys import FileKeys
from keepwarm.gateway.app import Gateway, build_app
from keepwarm.gateway.directory import StaticDirectory
from keepwarm.gateway.http_replica import HttpReplica
from keepwarm.gateway.server import GatewayServer
from keepwarm.gateway.settings import GatewaySettings


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """A server that answers."""

    url: str
    replica: ReplicaDescription
    block_size: int
    http: GatewayServer


@contextlib.asynccontextmanager
async def running_server(
    settings: ServeSettings, *, data_dir: Path, keys: FileKeys, on_backend_log: Callable[[str], None]
) -> AsyncIterator[RunningServer]:
    """Serves while the block runs. Raises `SetupError` when something cannot be started."""
    model = choose_model(settings)
    with (
        contextlib.closing(listen(settings.host, settings.port)) as listener,
        TemporaryDirectory(prefix="keepwarm-") as folder,  # a Unix socket's path may not be long
    ):
        told = backend_settings(
            settings,
            model_path=model.path,
            model_name=model.name,
            socket_path=Path(folder) / "backend.sock",
            data_dir=data_dir,
        )
        host_cache = host_cache_process(
            settings, folder=Path(folder), data_dir=data_dir, on_log_line=on_backend_log
        )
        backend = backend_process(settings, told, host_cache, on_backend_log)
        async with kept(host_cache), served_by(backend) as description:
            with contextlib.closing(HttpReplica(told.socket_path)) as replica:
                gateway = build_app(
                    _gateway_settings(settings, model.name),
                    keys=keys,
                    replicas=StaticDirectory(replica, trouble=lambda: backend.trouble),
                )
                async with _http(gateway, listener) as http:
                    yield RunningServer(
                        url=url_of(listener),
                        replica=description,
                        block_size=told.block_size,
                        http=http,
                    )


def _gateway_settings(settings: ServeSettings, model_name: str) -> GatewaySettings:
    return GatewaySettings(
        model_name=model_name,
        aliases=settings.aliases,
        strip_attribution=settings.strip_attribution,
        share_prefixes=settings.share_prefixes,
        max_body_mb=settings.max_body_mb,
        drain_s=settings.drain_timeout_s,
    )


@contextlib.asynccontextmanager
async def _http(gateway: Gateway, listener: socket.socket) -> AsyncIterator[GatewayServer]:
    """Answers while the block runs; on leaving, running answers get their time to end."""
    server = GatewayServer(gateway)
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="gateway")
    try:
        yield server
    finally:
        server.stop()
        await serving
