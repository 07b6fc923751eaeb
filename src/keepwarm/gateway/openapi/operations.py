"""Every public route: what it takes and what it may answer."""

from __future__ import annotations

from dataclasses import dataclass

from keepwarm.gateway.openapi import anthropic, openai
from keepwarm.gateway.openapi.schema import (
    COUNT,
    NAME,
    STRING,
    Schema,
    array,
    described,
    integer,
    one_of,
    record,
    ref,
)

JSON = "application/json"
EVENTS = "text/event-stream"
PLAIN = "text/plain"

Answers = dict[int, tuple[str, dict[str, Schema]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one route."""

    method: str
    path: str
    id: str
    summary: str
    answers: Answers
    """By status: what it means, and the schema by media type."""
    body: Schema | None = None
    parameters: tuple[str, ...] = ()
    """Names in `PARAMETERS`."""
    needs_key: bool = True


PARAMETERS: dict[str, Schema] = {
    "session": {
        "name": "x-session-id",
        "in": "header",
        "schema": STRING,
        "description": "The conversation's id; X-Claude-Code-Session-Id says the same and outranks it.",
    },
    "agent": {
        "name": "x-claude-code-agent-id",
        "in": "header",
        "schema": STRING,
        "description": "The subagent of that conversation.",
    },
    "cache": {
        "name": "x-keepwarm-cache",
        "in": "header",
        "schema": STRING,
        "description": "`bypass`: answer without the cache, leave nothing in it; other words are refused.",
    },
    "model": {"name": "name", "in": "path", "required": True, "schema": STRING, "example": "default"},
    "limit": {
        "name": "limit",
        "in": "query",
        "schema": integer(1),
        "description": "Ignored: all stand on one page.",
    },
}
_TURN_HEADERS = ("session", "agent", "cache")

_MODEL = record(
    {
        "id": described(NAME, "A name to ask for."),
        "display_name": described(NAME, "The served name."),
        "object": STRING,
        "created": COUNT,
    },
    {"max_model_len": COUNT, "max_input_tokens": COUNT, "max_tokens": COUNT},
)
SCHEMAS: dict[str, Schema] = {
    **anthropic.SCHEMAS,
    **openai.SCHEMAS,
    "Model": _MODEL,
    "ModelList": record({"object": STRING, "data": array(ref("Model"), at_least=1)}),
    "Readiness": record({"status": STRING}, {"model": STRING, "max_model_len": COUNT, "reason": STRING}),
    "Health": record({"status": STRING}, {"reason": STRING}),
    "Front": record({"service": STRING, "version": STRING}),
}


def _errors(error: Schema, *, overloaded: int, not_ready: int) -> Answers:
    """What a turn may end in before its first byte; afterwards the same comes as an event."""
    meanings = {
        400: "The body cannot be served, or the prompt is longer than the context.",
        401: "No key of ours, or two of different owners.",
        404: "The model is not served here.",
        413: "The body is larger than --max-body-mb.",
        overloaded: "The queue is full: come back after `retry-after`.",
        not_ready: "No model is ready: come back after `retry-after`.",
        503: "No model is ready; without `retry-after`, none will be until somebody has mended it.",
        500: "Our own mistake, or an engine that was lost; the same request may be sent again.",
    }
    return {status: (meaning, {JSON: error}) for status, meaning in meanings.items()}


_ANTHROPIC_ERRORS = _errors(anthropic.ERROR, overloaded=529, not_ready=529)
_OPENAI_ERRORS = _errors(openai.ERROR, overloaded=429, not_ready=503)
_EITHER_ERROR: Schema = one_of(anthropic.ERROR, openai.ERROR)
"""On routes of no dialect the request's headers say whose errors are spoken."""


def _keyed_page(meaning: str, media_type: str, schema: Schema) -> Answers:
    return {200: (meaning, {media_type: schema}), 401: ("No key of ours.", {JSON: _EITHER_ERROR})}


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="POST",
        path="/v1/messages",
        id="create_message",
        summary="Anthropic Messages: the next answer of a conversation, streamed or whole",
        body=anthropic.REQUEST,
        parameters=_TURN_HEADERS,
        answers={
            200: ("The answer; with `stream`, as events.", {JSON: anthropic.ANSWER, EVENTS: anthropic.EVENT}),
            **_ANTHROPIC_ERRORS,
        },
    ),
    Operation(
        method="POST",
        path="/v1/messages/count_tokens",
        id="count_tokens",
        summary="How many tokens a prompt is, counted with the served model's own template",
        body=anthropic.COUNT_REQUEST,
        parameters=("session", "agent"),
        answers={200: ("The number.", {JSON: anthropic.COUNT_ANSWER}), **_ANTHROPIC_ERRORS},
    ),
    Operation(
        method="POST",
        path="/v1/chat/completions",
        id="create_chat_completion",
        summary="OpenAI Chat Completions: the next answer of a conversation, streamed or whole",
        body=openai.CHAT_REQUEST,
        parameters=_TURN_HEADERS,
        answers={
            200: ("The answer; with `stream`, as events.", {JSON: openai.CHAT_ANSWER, EVENTS: openai.EVENT}),
            **_OPENAI_ERRORS,
        },
    ),
    Operation(
        method="POST",
        path="/v1/responses",
        id="create_response",
        summary="OpenAI Responses: the next answer of a conversation, streamed or whole; nothing is stored",
        body=openai.RESPONSES_REQUEST,
        parameters=_TURN_HEADERS,
        answers={
            200: (
                "The answer; with `stream`, as events.",
                {JSON: openai.RESPONSES_ANSWER, EVENTS: openai.EVENT},
            ),
            **_OPENAI_ERRORS,
        },
    ),
    Operation(
        method="GET",
        path="/v1/models",
        id="list_models",
        summary="The served model, and names that mean it too",
        parameters=("limit",),
        answers=_keyed_page("The served name first.", JSON, ref("ModelList")),
    ),
    Operation(
        method="GET",
        path="/v1/models/{name}",
        id="get_model",
        summary="One model, by any of its names",
        parameters=("model",),
        answers={
            **_keyed_page("The model.", JSON, ref("Model")),
            404: ("No model of that name is served here.", {JSON: _EITHER_ERROR}),
        },
    ),
    Operation(
        method="GET",
        path="/metrics",
        id="metrics",
        summary="Prometheus text: the gateway's metrics, then each replica's",
        answers=_keyed_page("The metrics.", PLAIN, STRING),
    ),
    Operation(
        method="GET",
        path="/healthz",
        id="health",
        summary="The gateway is up",
        needs_key=False,
        answers={
            200: (
                "It is: `ok`, or `degraded` where nothing is served until it is mended.",
                {JSON: ref("Health")},
            )
        },
    ),
    Operation(
        method="GET",
        path="/readyz",
        id="readiness",
        summary="A turn would be served now",
        needs_key=False,
        answers={
            200: ("It would.", {JSON: ref("Readiness")}),
            503: ("It would not, and why.", {JSON: ref("Readiness")}),
        },
    ),
    Operation(
        method="GET",
        path="/",
        id="front",
        summary="What this is",
        needs_key=False,
        answers={200: ("Name and version.", {JSON: ref("Front")})},
    ),
    Operation(
        method="GET",
        path="/openapi.json",
        id="openapi",
        summary="This document",
        needs_key=False,
        answers={200: ("OpenAPI 3.1.", {JSON: {"type": "object"}})},
    ),
)
