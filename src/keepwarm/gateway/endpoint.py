"""How every request ends: with an answer or an error in its dialect's shape, settled exactly once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

from keepwarm.core.errors import BadRequest, InvariantBroken, KeepwarmError
from keepwarm.core.principal import Principal
from keepwarm.dialects import anthropic, openai_chat
from keepwarm.dialects.dialect import Dialect
from keepwarm.gateway.accounts import Accounts
from keepwarm.gateway.auth import authenticate
from keepwarm.gateway.call import Call, ClientGone
from keepwarm.gateway.ports import KeyVerifier
from keepwarm.gateway.record import log_if_ours
from keepwarm.gateway.settings import GatewaySettings

_LOG = logging.getLogger("keepwarm.gateway")

Handler = Callable[[Call], Awaitable[None]]
KeyedHandler = Callable[[Call, Principal], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One route, as an ASGI app. `dialect` None: the request's headers say whose errors to speak."""

    route: str
    handler: Handler
    settings: GatewaySettings
    accounts: Accounts
    dialect: Dialect | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = Call(scope, receive, send, route=self.route, settings=self.settings)
        self.accounts.open_requests.inc()
        try:
            await self._respond(call)
        except ClientGone as gone:
            call.record.outcome = gone.outcome
        except asyncio.CancelledError:
            call.record.outcome = "cancelled"
            raise
        finally:
            call.close()
            self.accounts.open_requests.dec()
            self.accounts.settle(call.record, asyncio.get_running_loop().time())

    async def _respond(self, call: Call) -> None:
        try:
            await self.handler(call)
        except KeepwarmError as error:
            log_if_ours(error, call.record.request_id)
            await self._fail(call, error)
        except RecursionError:
            await self._fail(call, BadRequest("the body is nested too deeply"))
        except ClientGone:
            raise
        except Exception:
            _LOG.exception("request %s failed", call.record.request_id)
            await self._fail(call, InvariantBroken("unexpected error"))

    async def _fail(self, call: Call, error: KeepwarmError) -> None:
        call.record.outcome = error.code
        if call.finished:
            return  # the client has its answer; only the log can tell
        if call.started:
            await call.finish()  # too late for a status; a stream has said it already
            return
        dialect = self.dialect or _spoken(call)
        await call.reply_error(dialect.error_reply(error, call.record.request_id))


def keyed(keys: KeyVerifier, handler: KeyedHandler) -> Handler:
    """The handler, for those who bring a key."""

    async def check_key_first(call: Call) -> None:
        admission = await authenticate(call.headers, keys)
        principal = admission.principal
        call.record.tenant, call.record.key_id = principal.tenant, principal.key_id
        call.record.ignored_key_header = admission.ignored_header
        await handler(call, principal)

    return check_key_first


def _spoken(call: Call) -> Dialect:
    if "anthropic-version" in call.headers or "x-api-key" in call.headers:
        return anthropic
    return openai_chat
