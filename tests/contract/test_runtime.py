"""The routes beside the stream, and every refusal's status and form."""

from __future__ import annotations

import msgspec
import pytest

from keepwarm.chat.events import Failed
from keepwarm.chat.request import CountAnswer, CountRequest, ReplicaDescription
from keepwarm.chat.wire import encode_ask
from keepwarm.contract import runtime
from keepwarm.contract.runtime import BackendApp, status_of
from keepwarm.core.errors import (
    BadRequest,
    BodyTooLarge,
    ContextTooLong,
    Degraded,
    EngineLost,
    ErrorOnWire,
    InvariantBroken,
    KeepwarmError,
    NotFound,
    NotReady,
    Overloaded,
)
from tests.contract.asgi_client import AsgiClient
from tests.contract.fake_backend import HELLO, FakeBackend, chat_request

COUNT = msgspec.msgpack.encode(CountRequest(tenant=chat_request().tenant, chat=chat_request().chat))


async def ask(
    method: str, path: str, *pieces: bytes, backend: FakeBackend | None = None, refusal: str | None = None
) -> AsgiClient:
    app = BackendApp(backend or FakeBackend(*HELLO))
    app.refusal = refusal
    client = AsgiClient(method, path, *pieces)
    await client.call(app)
    return client


def error_of(client: AsgiClient) -> ErrorOnWire:
    return msgspec.msgpack.decode(b"".join(client.bodies), type=ErrorOnWire)


async def test_ready_describes_what_is_served() -> None:
    client = await ask("GET", "/ready")
    assert client.status == 200
    described = msgspec.msgpack.decode(client.bodies[0], type=ReplicaDescription)
    assert described == ReplicaDescription(model="fake", max_model_len=10, cache_tokens=100)


async def test_ready_says_why_not() -> None:
    backend = FakeBackend()
    backend.reason = "the engine was lost"
    client = await ask("GET", "/ready", backend=backend)
    assert client.status == 503
    assert error_of(client) == ErrorOnWire(code="not_ready", fields={"message": "the engine was lost"})


async def test_waiting_for_one_that_is_left_stopped_helps_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = FakeBackend()
    monkeypatch.setattr(backend, "refusal", lambda: Degraded("no rank is started again"))
    for method, path, body in [("GET", "/ready", b""), ("POST", "/count", COUNT)]:
        client = await ask(method, path, body, backend=backend)
        assert client.status == 503
        assert error_of(client) == ErrorOnWire(
            code="degraded", fields={"message": "no rank is started again"}
        )


async def test_until_it_is_loaded_an_app_refuses_everything_that_needs_the_model() -> None:
    app = BackendApp(FakeBackend(*HELLO))
    for method, path in (("GET", "/ready"), ("POST", "/count")):
        client = AsgiClient(method, path, COUNT)
        await client.call(app)
        assert client.status == 503
        assert "loading" in str(error_of(client).fields["message"])


async def test_until_it_is_loaded_an_app_refuses_turns_one_by_one() -> None:
    client = AsgiClient("POST", "/channel", encode_ask(1, chat_request()))
    await client.call(BackendApp(FakeBackend(*HELLO)))
    (failed,) = client.events()
    assert isinstance(failed, Failed)
    assert failed.error == ErrorOnWire(code="not_ready", fields={"message": "the model is loading"})


async def test_metrics_are_the_backend_s_own() -> None:
    client = await ask("GET", "/metrics", refusal="the model is loading")
    assert (client.status, client.bodies) == (200, [b"fake_total 1\n"])


async def test_tokens_are_counted() -> None:
    client = await ask("POST", "/count", COUNT)
    assert msgspec.msgpack.decode(client.bodies[0], type=CountAnswer) == CountAnswer(tokens=1)


async def test_a_body_may_come_in_pieces() -> None:
    client = await ask("POST", "/count", COUNT[:5], b"", COUNT[5:])
    assert msgspec.msgpack.decode(client.bodies[0], type=CountAnswer) == CountAnswer(tokens=1)


async def test_a_body_that_is_none_of_ours_is_refused() -> None:
    client = await ask("POST", "/count", b"{}")
    assert client.status == 400
    assert error_of(client).code == "bad_request"


async def test_a_body_over_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_MAX_BODY_BYTES", 10)
    client = await ask("POST", "/count", b"123456", b"123456")
    assert client.status == 413
    assert error_of(client).fields == {"limit_bytes": 10}


@pytest.mark.parametrize(("method", "path"), [("GET", "/channel"), ("POST", "/ready"), ("GET", "/")])
async def test_an_unknown_route_is_named(method: str, path: str) -> None:
    client = await ask(method, path)
    assert client.status == 404
    assert error_of(client).fields == {"message": f"{method} {path} is no route of a backend"}


async def test_a_client_that_goes_away_while_it_sends_is_told_nothing() -> None:
    client = AsgiClient("POST", "/count", b"x")
    client.go_away()
    await client.call(BackendApp(FakeBackend(*HELLO)))
    assert client.sent == []


async def test_an_unknown_exception_is_told_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(FakeBackend):
        def describe(self) -> ReplicaDescription:
            raise ValueError("a secret")

    client = await ask("GET", "/ready", backend=Broken())
    assert client.status == 500
    assert error_of(client).fields == {"message": "the backend failed on ValueError"}
    assert "Traceback" in caplog.text


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (BadRequest(""), 400),
        (ContextTooLong(tokens=2, limit=1), 400),
        (NotFound(""), 404),
        (BodyTooLarge(limit_bytes=1), 413),
        (Overloaded(message="", retry_after_s=1.0), 429),
        (NotReady(""), 503),
        (EngineLost(""), 500),
        (InvariantBroken(""), 500),
    ],
)
def test_each_family_of_errors_has_its_status(error: KeepwarmError, status: int) -> None:
    assert status_of(error) == status
