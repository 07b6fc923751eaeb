"""OpenAI's error bodies and statuses, the same in Chat Completions and Responses but for one."""

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
from keepwarm.dialects.errors import BadField, UnknownModel, is_lasting, retry_after_s, told
from keepwarm.dialects.sse import json_line

_KINDS: tuple[tuple[type[KeepwarmError], int, str, str | None], ...] = (
    (BadRequest, 400, "invalid_request_error", None),
    (ContextTooLong, 400, "invalid_request_error", "context_length_exceeded"),
    (Unauthorized, 401, "invalid_request_error", "invalid_api_key"),
    (UnknownModel, 404, "invalid_request_error", "model_not_found"),
    (NotFound, 404, "invalid_request_error", "not_found"),
    (BodyTooLarge, 413, "invalid_request_error", "request_too_large"),
    (Overloaded, 429, "rate_limit_error", "overloaded"),
    (Degraded, 503, "server_error", "degraded"),
    (NotReady, 503, "server_error", "not_ready"),
)


def error_reply(error: KeepwarmError, request_id: str) -> ErrorReply:
    """Status and body of an error before the first byte. The id stands in a header alone."""
    status, _, _ = error_kind(error)
    return ErrorReply(
        status=status,
        body=json_line(error_body(error)),
        retry_after_s=retry_after_s(error),
        is_lasting=is_lasting(error),
    )


def error_body(error: KeepwarmError) -> dict[str, Any]:
    """The JSON of an error."""
    _, kind, code = error_kind(error)
    param = error.field if isinstance(error, BadField) else None
    return {"error": {"message": told(error), "type": kind, "param": param, "code": code}}


def error_kind(error: KeepwarmError) -> tuple[int, str, str | None]:
    """Status, type and code."""
    for cls, status, kind, code in _KINDS:
        if isinstance(error, cls):
            return status, kind, code
    return 500, "server_error", None
