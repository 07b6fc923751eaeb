"""Errors of Responses: OpenAI's bodies, and how a response that broke off names its error.

Codex does not try again after a 429, which it takes for a spent allowance, but after a 503 it does.
"""

from __future__ import annotations

from dataclasses import replace

from keepwarm.core.errors import BadRequest, ContextTooLong, KeepwarmError, Overloaded
from keepwarm.dialects import openai_errors
from keepwarm.dialects.dialect import ErrorReply
from keepwarm.dialects.errors import retry_after_s, told

_BUSY_STATUS = 503


def error_reply(error: KeepwarmError, request_id: str) -> ErrorReply:
    """Status and body of an error before the first byte."""
    reply = openai_errors.error_reply(error, request_id)
    return replace(reply, status=_BUSY_STATUS) if isinstance(error, Overloaded) else reply


def failure(error: KeepwarmError) -> dict[str, str]:
    """`error` of a failed response. Clients read the wait out of the sentence."""
    match error:
        case ContextTooLong():
            return {"code": "context_length_exceeded", "message": told(error)}
        case BadRequest():
            return {"code": "invalid_prompt", "message": told(error)}
        case Overloaded():
            message = f"{told(error)}; please try again in {retry_after_s(error)}s"
            return {"code": "rate_limit_exceeded", "message": message}
        case _:
            return {"code": "server_error", "message": told(error)}
