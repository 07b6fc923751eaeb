"""The document itself, put together from the operations."""

from __future__ import annotations

from typing import Any

from keepwarm import __version__
from keepwarm.gateway.cached_note import CACHED_HEADER
from keepwarm.gateway.openapi.operations import JSON, OPERATIONS, PARAMETERS, SCHEMAS, Operation
from keepwarm.gateway.openapi.schema import STRING

_ABOUT = """\
Keepwarm serves coding agents: Anthropic Messages and OpenAI's wire forms over one model.

Fields of bodies that are not named here are ignored and counted in the metrics. An error after the
first byte of a stream is an event of the stream. While a long prompt is read, a stream is kept alive
by pings or comments.
"""
_KEYS = {
    "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    "bearer": {"type": "http", "scheme": "bearer"},
}
_ANSWER_HEADERS = {
    "request-id": {"schema": STRING, "description": "Names the request in the server's log."},
    "x-request-id": {"schema": STRING, "description": "The same."},
}
_CACHED_TOKENS = {
    CACHED_HEADER: {
        "schema": STRING,
        "description": "Cached tokens of the prompt by tier, `l0=…, l1=…, disk=…`. A stream says it in a "
        "comment before its end, and here only where it is known that early.",
    }
}
_RETRY_AFTER = {
    "retry-after": {
        "schema": {"type": "integer", "minimum": 1, "maximum": 55},
        "description": "Seconds; left out where coming back does not help.",
    }
}


def openapi_document() -> dict[str, Any]:
    """The document as a value for JSON."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Keepwarm", "version": __version__, "description": _ABOUT},
        "paths": paths,
        "components": {"schemas": SCHEMAS, "parameters": PARAMETERS, "securitySchemes": _KEYS},
    }


def _described(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.id,
        "summary": operation.summary,
        "security": [{"apiKey": []}, {"bearer": []}] if operation.needs_key else [],
        "responses": {str(status): _answer(operation, status) for status in sorted(operation.answers)},
    }
    if operation.parameters:
        described["parameters"] = [
            {"$ref": f"#/components/parameters/{name}"} for name in operation.parameters
        ]
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": {JSON: {"schema": operation.body}}}
    return described


def _answer(operation: Operation, status: int) -> dict[str, Any]:
    meaning, schemas = operation.answers[status]
    headers = _ANSWER_HEADERS | (_RETRY_AFTER if status in (429, 503, 529) else {})
    if status == 200 and "cache" in operation.parameters:
        headers |= _CACHED_TOKENS
    return {
        "description": meaning,
        "headers": headers,
        "content": {media_type: {"schema": schema} for media_type, schema in schemas.items()},
    }
