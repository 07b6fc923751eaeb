"""Everything that is not a turn: models, health, metrics, the front page and routes that are not there."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any

from keepwarm import __version__
from keepwarm.chat.request import ReplicaDescription
from keepwarm.core.errors import Degraded, KeepwarmError, NotFound, NotReady
from keepwarm.core.principal import Principal
from keepwarm.dialects.errors import UnknownModel
from keepwarm.dialects.models import model_body, model_entry, models_body
from keepwarm.dialects.sse import json_line
from keepwarm.gateway.accounts import Accounts
from keepwarm.gateway.call import Call
from keepwarm.gateway.openapi.document import openapi_document
from keepwarm.gateway.ports import Replica, ReplicaDirectory
from keepwarm.gateway.settings import GatewaySettings

_LOG = logging.getLogger("keepwarm.gateway")

_PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Pages:
    """Reads, never changes anything."""

    def __init__(self, settings: GatewaySettings, *, replicas: ReplicaDirectory, accounts: Accounts) -> None:
        self._names = settings.names
        self._replicas = replicas
        self._accounts = accounts
        self._started_at = int(time.time())

    async def front(self, call: Call) -> None:
        """Says what this is; clients ask with HEAD whether somebody is there."""
        await call.reply(200, json_line({"service": "keepwarm", "version": __version__}))

    async def openapi(self, call: Call) -> None:
        """The description of every route."""
        await call.reply(200, json_line(openapi_document()))

    async def healthz(self, call: Call) -> None:
        """This process lives, and asks nobody; "degraded" where nothing will be served until somebody
        has mended what the reason says."""
        trouble = self._replicas.trouble()
        if isinstance(trouble, Degraded):
            await call.reply(200, json_line({"status": "degraded", "reason": str(trouble)}))
        else:
            await call.reply(200, json_line({"status": "ok"}))

    async def readyz(self, call: Call) -> None:
        """A turn would be served now; `reason` then says what is amiss all the same."""
        trouble = self._replicas.trouble()
        found = await self._describe_all() if trouble is None else [trouble]
        ready = [each for each in found if isinstance(each, ReplicaDescription)]
        if ready:
            body = {"status": "ready", "model": ready[0].model, "max_model_len": ready[0].max_model_len}
            if ready[0].trouble:
                body["reason"] = ready[0].trouble
            await call.reply(200, json_line(body))
        else:
            why = found[0] if found else NotReady("there is no replica")
            status = "degraded" if isinstance(why, Degraded) else "not ready"
            await call.reply(503, json_line({"status": status, "reason": str(why)}))

    async def models(self, call: Call, principal: Principal) -> None:
        """The served model first, then names that mean it too."""
        max_model_len = await self._max_model_len()
        entries = [self._entry(name, max_model_len) for name in self._names.listed]
        await call.reply(200, models_body(entries))

    async def model(self, call: Call, principal: Principal) -> None:
        """One model, by any of its names."""
        name = call.path_params["name"]
        if not self._names.means_served(name):
            raise UnknownModel(name, served=self._names.accepted)
        await call.reply(200, model_body(self._entry(name, await self._max_model_len())))

    async def metrics(self, call: Call, principal: Principal) -> None:
        """The gateway's own metrics, then each replica's."""
        replicas = self._replicas.replicas()
        texts = await asyncio.gather(*(_metrics_text(replica) for replica in replicas))
        body = self._accounts.text() + "".join(texts).encode()
        await call.reply(200, body, media_type=_PROMETHEUS_TEXT)

    def _entry(self, name: str, max_model_len: int | None) -> dict[str, Any]:
        return model_entry(
            name,
            shown_as=self._names.served,
            created_at=self._started_at,
            max_model_len=max_model_len,
        )

    async def _max_model_len(self) -> int | None:
        found = await self._describe_all()
        lengths = (each.max_model_len for each in found if isinstance(each, ReplicaDescription))
        return next(lengths, None)

    async def _describe_all(self) -> list[ReplicaDescription | KeepwarmError]:
        return await asyncio.gather(*(_describe(replica) for replica in self._replicas.replicas()))


class UnknownRoutes:
    """The last route: whatever no other one took."""

    def __init__(self, methods_of: Mapping[str, str]) -> None:
        self._methods_of = methods_of

    async def __call__(self, call: Call) -> None:
        allowed = self._methods_of.get(call.path)
        if allowed is not None:
            raise NotFound(f"{call.method} {call.path} is not served; {allowed} {call.path} is")
        for meant in (
            f"/v1{call.path}",
            call.path.removeprefix("/v1"),
        ):  # a base URL without /v1, or with it twice
            if meant in self._methods_of:
                raise NotFound(
                    f"{call.method} {call.path} is not served; {meant} is: check /v1 in the client's base URL"
                )
        raise NotFound(f"{call.method} {call.path[:100]} is not served here")


async def _describe(replica: Replica) -> ReplicaDescription | KeepwarmError:
    try:
        return await replica.describe()
    except KeepwarmError as error:
        return error


async def _metrics_text(replica: Replica) -> str:
    try:
        text = await replica.metrics_text()
    except KeepwarmError as error:
        _LOG.warning("a replica's metrics are missing: %s", error)
        return ""
    return text if text.endswith("\n") or not text else text + "\n"
