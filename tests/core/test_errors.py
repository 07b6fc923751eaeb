"""Errors keep their class and fields on the way between processes."""

from __future__ import annotations

import msgspec
import pytest

from keepwarm.core import errors
from keepwarm.core.errors import ErrorOnWire, KeepwarmError, from_wire, to_wire

EXAMPLES: list[KeepwarmError] = [
    errors.BadRequest("x"),
    errors.Unauthorized("x"),
    errors.NotFound("x"),
    errors.ContextTooLong(tokens=9, limit=4),
    errors.BodyTooLarge(limit_bytes=5),
    errors.Overloaded(message="busy", retry_after_s=3.5),
    errors.NotReady("x"),
    errors.Degraded("x"),
    errors.ReplicaLost("x"),
    errors.EngineLost("x"),
    errors.BadModel("x"),
    errors.TooLittleMemory("x"),
    errors.BadSetting("x"),
    errors.InvariantBroken("x"),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_survives_the_wire(error: KeepwarmError) -> None:
    raw = msgspec.msgpack.encode(to_wire(error))
    back = from_wire(msgspec.msgpack.decode(raw, type=ErrorOnWire))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert back.fields() == error.fields()


def test_an_unknown_code_becomes_a_service_error_with_its_message() -> None:
    back = from_wire(ErrorOnWire(code="from_the_future", fields={"message": "hello"}))
    assert isinstance(back, errors.ServiceError)
    assert str(back) == "hello"


def test_context_too_long_reads_as_clients_expect() -> None:
    error = errors.ContextTooLong(tokens=208310, limit=200000)
    assert str(error) == "prompt is too long: 208310 tokens > 200000 maximum"


def test_retry_after_never_exceeds_what_clients_obey() -> None:
    assert errors.Overloaded(message="busy", retry_after_s=400).retry_after_s == 55.0
