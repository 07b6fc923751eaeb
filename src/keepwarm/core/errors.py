"""Every error Keepwarm raises on purpose.

    KeepwarmError
    ├── CallerError             what the caller sent or asked for
    │   ├── BadRequest            a body or value that cannot be served
    │   ├── Unauthorized          no key, or none that is known
    │   ├── NotFound              an unknown model or route
    │   ├── ContextTooLong        more tokens than the model's context
    │   ├── BodyTooLarge          more bytes than the size limit
    │   └── Overloaded            refused for now; says when to come back
    ├── ServiceError            what happened to us while serving
    │   ├── NotReady              the model is still loading, or restarting
    │   │   └── Degraded            it was lost too often, or cannot be started again: left stopped
    │   ├── ReplicaLost           the backend process went away
    │   ├── UnknownConversation   what was left out of a request is not known any more
    │   └── EngineLost            the rank process went away or hung
    ├── SetupError              why something could not be started
    │   ├── BadModel              a model folder or file that cannot be served
    │   ├── TooLittleMemory       a budget that does not fit the machine
    │   ├── PortInUse
    │   └── BadSetting            an option's value
    └── InvariantBroken         our own mistake

An exception knows its meaning; a dialect knows its status and body. `to_wire` and
`from_wire` carry the first two families between processes without losing a field.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

MAX_RETRY_AFTER_S = 55.0
"""Told to come back in a minute or later, Claude Code fails at once instead."""


class ErrorOnWire(msgspec.Struct, frozen=True, kw_only=True):
    """An error between processes: `code` names the class, `fields` are its constructor's arguments."""

    code: str
    fields: dict[str, str | int | float | None]


class KeepwarmError(Exception):
    """The root. `str(error)` is one sentence for the person who can act on it."""

    code: ClassVar[str] = "internal_error"

    def fields(self) -> dict[str, str | int | float | None]:
        """The constructor's keyword arguments, so that another process can rebuild the error."""
        return {"message": str(self)}


class _MessageError(KeepwarmError):
    def __init__(self, message: str) -> None:
        super().__init__(message)


class CallerError(KeepwarmError):
    """The caller can mend it."""


class BadRequest(_MessageError, CallerError):
    """A body or a value that cannot be served; the message names the field and the value."""

    code = "bad_request"


class Unauthorized(_MessageError, CallerError):
    """No key, or none that is known."""

    code = "unauthorized"


class NotFound(_MessageError, CallerError):
    """An unknown model or route."""

    code = "not_found"


class ContextTooLong(CallerError):
    """The prompt can never fit. Clients compact on this wording, so it is fixed."""

    code = "context_too_long"

    def __init__(self, *, tokens: int, limit: int) -> None:
        super().__init__(f"prompt is too long: {tokens} tokens > {limit} maximum")
        self.tokens = tokens
        self.limit = limit

    def fields(self) -> dict[str, str | int | float | None]:
        return {"tokens": self.tokens, "limit": self.limit}


class BodyTooLarge(CallerError):
    """The request's body is over the size limit."""

    code = "body_too_large"

    def __init__(self, *, limit_bytes: int) -> None:
        super().__init__(f"Request exceeds the maximum size of {limit_bytes} bytes (--max-body-mb)")
        self.limit_bytes = limit_bytes

    def fields(self) -> dict[str, str | int | float | None]:
        return {"limit_bytes": self.limit_bytes}


class Overloaded(CallerError):
    """Refused for now. `retry_after_s` never exceeds `MAX_RETRY_AFTER_S`."""

    code = "overloaded"

    def __init__(self, *, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = min(max(0.0, retry_after_s), MAX_RETRY_AFTER_S)  # this order: nan becomes 0

    def fields(self) -> dict[str, str | int | float | None]:
        return {"message": str(self), "retry_after_s": self.retry_after_s}


class ServiceError(_MessageError):
    """We failed; the same request may succeed later."""


class NotReady(ServiceError):
    """The model is still loading, or its engine is restarting."""

    code = "not_ready"


class Degraded(NotReady):
    """Nothing is started any more until somebody has mended what the message says."""

    code = "degraded"


class ReplicaLost(ServiceError):
    """The backend process went away while it served."""

    code = "replica_lost"


class UnknownConversation(ServiceError):
    """The backend no longer knows the beginning that was left out: send the whole."""

    code = "unknown_conversation"


class EngineLost(ServiceError):
    """The rank process went away or hung while it served."""

    code = "engine_lost"


class SetupError(_MessageError):
    """Why something could not be started; the message names the value, the limit and the setting."""

    code = "setup_error"


class BadModel(SetupError):
    """A model folder or file that is missing, incomplete or of an unsupported architecture."""

    code = "bad_model"


class TooLittleMemory(SetupError):
    """Says how much is needed and which setting to lower."""

    code = "too_little_memory"


class PortInUse(SetupError):
    """Somebody else listens there."""

    code = "port_in_use"


class BadSetting(SetupError):
    """An option's value, with the option's name, the value and what would do."""

    code = "bad_setting"


class InvariantBroken(_MessageError):
    """Our own mistake: state that must never be."""

    code = "internal_error"


_ON_WIRE: dict[str, type[KeepwarmError]] = {
    cls.code: cls
    for cls in (
        *(BadRequest, Unauthorized, NotFound, ContextTooLong, BodyTooLarge, Overloaded),
        *(NotReady, Degraded, ReplicaLost, UnknownConversation, EngineLost),
        *(BadModel, TooLittleMemory, BadSetting, SetupError, InvariantBroken),
    )
}


def to_wire(error: KeepwarmError) -> ErrorOnWire:
    """The error as a value that another process can rebuild."""
    return ErrorOnWire(code=error.code, fields=error.fields())


def from_wire(error: ErrorOnWire) -> KeepwarmError:
    """The inverse of `to_wire`; a code we do not know becomes a `ServiceError` with its message."""
    cls = _ON_WIRE.get(error.code)
    if cls is None:
        return ServiceError(str(error.fields.get("message", error.code)))
    return cls(**error.fields)
