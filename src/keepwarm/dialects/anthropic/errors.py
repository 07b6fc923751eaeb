"""Anthropic's error bodies and statuses."""

from __future__ import annotations

from typing import Any

from keepwarm.core.errors import (
    BadRequest,
    BodyTooLarge,
    ContextTooLong,
    Degraded,
    KeepwarmError,
    NotFound,
    NotReady,
    Overloaded,
    Unauthorized,
)
from keepwarm.dialects.dialect import ErrorReply
from keepwarm.dialects.errors import is_lasting, retry_after_s, told
from keepwarm.dialects.sse import json_line, named_event

_KINDS: tuple[tuple[type[KeepwarmError], int, str], ...] = (
    (BadRequest, 400, "invalid_request_error"),
    (ContextTooLong, 400, "invalid_request_error"),
    (Unauthorized, 401, "authentication_error"),
    (NotFound, 404, "not_found_error"),
    (BodyTooLarge, 413, "request_too_large"),
    (Overloaded, 529, "overloaded_error"),
    (Degraded, 503, "api_error"),
    (NotReady, 529, "overloaded_error"),
)


def error_reply(error: KeepwarmError, request_id: str) -> ErrorReply:
    """Status and body of an error before the first byte."""
    status, _ = _kind(error)
    return ErrorReply(
        status=status,
        body=json_line(_body(error, request_id)),
        retry_after_s=retry_after_s(error),
        is_lasting=is_lasting(error),
    )


def error_event(error: KeepwarmError, request_id: str) -> bytes:
    """The event that ends a stream which cannot be completed."""
    return named_event(b"error", _body(error, request_id))


def _body(error: KeepwarmError, request_id: str) -> dict[str, Any]:
    _, kind = _kind(error)
    return {"type": "error", "error": {"type": kind, "message": told(error)}, "request_id": request_id}


def _kind(error: KeepwarmError) -> tuple[int, str]:
    for cls, status, kind in _KINDS:
        if isinstance(error, cls):
            return status, kind
    return 500, "api_error"
