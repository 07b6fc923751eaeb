"""What both dialects say about errors: which of our own may be told, and the field at fault."""

from __future__ import annotations

import math
from collections.abc import Sequence

from keepwarm.core.errors import (
    BadRequest,
    CallerError,
    Degraded,
    KeepwarmError,
    NotFound,
    NotReady,
    Overloaded,
    ReplicaLost,
    ServiceError,
)

NOT_READY_RETRY_AFTER_S = 5
_SHOWN_CHARACTERS = 100


class BadField(BadRequest):
    """A field that cannot be served. The message begins with the field's path."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field

    def fields(self) -> dict[str, str | int | float | None]:
        return {"message": str(self)}


class UnknownModel(NotFound):
    """A model name that is not served here."""

    def __init__(self, name: str, *, served: Sequence[str]) -> None:
        super().__init__(
            f"model: {name[:_SHOWN_CHARACTERS]!r} is not served here; served: {', '.join(served)}"
        )

    def fields(self) -> dict[str, str | int | float | None]:
        return {"message": str(self)}


def told(error: KeepwarmError) -> str:
    """The sentence for the client. Our own mistakes are for the log, not for the client."""
    if isinstance(error, CallerError | ServiceError):
        return str(error)
    return "internal error; the server's log has the details under this request's id"


def retry_after_s(error: KeepwarmError) -> int | None:
    """Whole seconds for `retry-after`, where coming back can help."""
    match error:
        case Overloaded():
            return max(1, math.ceil(error.retry_after_s))
        case Degraded():
            return None
        case NotReady() | ReplicaLost():
            return NOT_READY_RETRY_AFTER_S
        case _:
            return None


def is_lasting(error: KeepwarmError) -> bool:
    """Whether coming back is of no use."""
    return isinstance(error, Degraded)
