"""Gateways to knock at: one in this process without a socket, one behind uvicorn on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import anthropic
import httpx
import openai

from keepwarm.core.ids import TenantId
from keepwarm.core.principal import Principal
from keepwarm.gateway.app import Gateway, build_app
from keepwarm.gateway.directory import StaticDirectory
from keepwarm.gateway.ports import Replica
from keepwarm.gateway.server import GatewayServer
from keepwarm.gateway.settings import GatewaySettings
from tests.gateway.scripted_replica import ScriptedReplica

KEY = "ik_live_right"
SECOND_KEY = "ik_live_second"
OTHER_KEY = "ik_live_other"
LIMIT_S = 10.0
"""Nothing a test waits for takes longer."""

_OWNERS = {
    KEY: ("default", "key_1"),
    SECOND_KEY: ("default", "key_3"),
    OTHER_KEY: ("other", "key_2"),
}


class KnownKeys:
    """A `KeyVerifier` that knows three keys of two owners."""

    async def verify(self, secret: str) -> Principal | None:
        if secret not in _OWNERS:
            return None
        tenant, key_id = _OWNERS[secret]
        return Principal(tenant=TenantId(tenant), key_id=key_id)


def gateway(replica: Replica, **settings: Any) -> Gateway:
    return build_app(
        GatewaySettings(model_name="smol", **settings),
        keys=KnownKeys(),
        replicas=StaticDirectory(replica),
    )


@contextlib.asynccontextmanager
async def without_socket(replica: ScriptedReplica, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a gateway in this process. Answers come whole."""
    transport = httpx.ASGITransport(app=gateway(replica, **settings))
    headers = {"x-api-key": KEY}
    async with httpx.AsyncClient(transport=transport, base_url="http://door", headers=headers) as client:
        yield client


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """A gateway on loopback."""

    url: str
    server: GatewayServer
    serving: asyncio.Task[None]

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        headers = {"x-api-key": KEY}
        async with httpx.AsyncClient(base_url=self.url, headers=headers, timeout=LIMIT_S) as client:
            yield client

    def anthropic(self) -> anthropic.AsyncAnthropic:
        return anthropic.AsyncAnthropic(base_url=self.url, api_key=KEY, max_retries=0, timeout=LIMIT_S)

    def openai(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=KEY, max_retries=0, timeout=LIMIT_S)


@contextlib.asynccontextmanager
async def on_loopback(replica: Replica, **settings: Any) -> AsyncIterator[Door]:
    """A gateway that serves while the block runs."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = GatewayServer(gateway(replica, **({"drain_s": 1.0} | settings)))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    async with asyncio.timeout(LIMIT_S):
        await server.is_up.wait()
    try:
        yield Door(url=f"http://127.0.0.1:{listener.getsockname()[1]}", server=server, serving=serving)
    finally:
        server.stop()
        async with asyncio.timeout(LIMIT_S):
            await serving
        listener.close()
