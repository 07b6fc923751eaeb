"""The public ASGI app: which route does what."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.types import Receive, Scope, Send

from keepwarm.dialects import anthropic, openai_chat, openai_responses
from keepwarm.dialects.dialect import Dialect
from keepwarm.gateway.accounts import Accounts
from keepwarm.gateway.endpoint import Endpoint, Handler, KeyedHandler, keyed
from keepwarm.gateway.openapi.operations import OPERATIONS
from keepwarm.gateway.pages import Pages, UnknownRoutes
from keepwarm.gateway.ports import KeyVerifier, ReplicaDirectory
from keepwarm.gateway.settings import GatewaySettings
from keepwarm.gateway.turns import Turns


def build_app(settings: GatewaySettings, *, keys: KeyVerifier, replicas: ReplicaDirectory) -> Gateway:
    """The app. `server.GatewayServer` serves it and drains it at shutdown."""
    return Gateway(settings, keys=keys, replicas=replicas)


class Gateway:
    """An ASGI app, and the answers it is giving."""

    def __init__(self, settings: GatewaySettings, *, keys: KeyVerifier, replicas: ReplicaDirectory) -> None:
        self.settings = settings
        self._keys = keys
        self._accounts = Accounts()
        self._turns = Turns(settings, replicas=replicas, accounts=self._accounts)
        self._pages = Pages(settings, replicas=replicas, accounts=self._accounts)
        methods_of = {each.path: each.method for each in OPERATIONS}
        elsewhere = self._endpoint("other", UnknownRoutes(methods_of))
        # A router and no Starlette app: each layer of middleware costs a call a token, and `Endpoint`
        # ends every request itself. The default is for paths with a line break, which no pattern takes.
        routes = [*self._routes(), Mount("/", app=elsewhere)]
        self._app = Router(routes=routes, redirect_slashes=False, default=elsewhere)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    @property
    def routes(self) -> Sequence[BaseRoute]:
        """What is served; the last one takes whatever no other does."""
        return self._app.routes

    async def drain(self, limit_s: float) -> None:
        """Refuse new turns; return once the open ones ended. After `limit_s` they are ended."""
        await self._turns.drain(limit_s)

    def end_answers(self) -> None:
        """End every open answer now, with its dialect's error event."""
        self._turns.end_all()

    def _routes(self) -> Sequence[BaseRoute]:
        turns, pages = self._turns, self._pages
        messages = partial(turns.answer, dialect=anthropic)
        count_tokens = partial(turns.count, dialect=anthropic)
        chat_completions = partial(turns.answer, dialect=openai_chat)
        responses = partial(turns.answer, dialect=openai_responses)
        return (
            self._keyed("POST", "/v1/messages", messages, anthropic),
            self._keyed("POST", "/v1/messages/count_tokens", count_tokens, anthropic),
            self._keyed("POST", "/v1/chat/completions", chat_completions, openai_chat),
            self._keyed("POST", "/v1/responses", responses, openai_responses),
            self._keyed("GET", "/v1/models", pages.models),
            self._keyed("GET", "/v1/models/{name:path}", pages.model),
            self._keyed("GET", "/metrics", pages.metrics),
            self._open("GET", "/healthz", pages.healthz),
            self._open("GET", "/readyz", pages.readyz),
            self._open("GET", "/openapi.json", pages.openapi),
            self._open("GET", "/", pages.front),
        )

    def _keyed(self, method: str, path: str, handler: KeyedHandler, dialect: Dialect | None = None) -> Route:
        return Route(path, self._endpoint(path, keyed(self._keys, handler), dialect), methods=[method])

    def _open(self, method: str, path: str, handler: Handler) -> Route:
        return Route(path, self._endpoint(path, handler), methods=[method])

    def _endpoint(self, route: str, handler: Handler, dialect: Dialect | None = None) -> Endpoint:
        return Endpoint(
            route=route,
            handler=handler,
            settings=self.settings,
            accounts=self._accounts,
            dialect=dialect,
        )
