"""The list of models, in one shape that the Anthropic and the OpenAI SDK both read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from keepwarm.dialects.sse import json_line


def model_entry(name: str, *, shown_as: str, created_at: int, max_model_len: int | None) -> dict[str, Any]:
    """One name of a model; `shown_as` says which model that is. `max_model_len` is None while the
    backend is not ready."""
    entry: dict[str, Any] = {
        "id": name,
        "object": "model",
        "type": "model",
        "display_name": shown_as,
        "created": created_at,
        "created_at": datetime.fromtimestamp(created_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "owned_by": "keepwarm",
        "lifecycle": "active",
    }
    if max_model_len is not None:
        entry |= {
            "max_model_len": max_model_len,
            "max_input_tokens": max_model_len,
            "max_tokens": max_model_len,
        }
    return entry


def models_body(entries: list[dict[str, Any]]) -> bytes:
    """The list, all on one page."""
    return json_line(
        {
            "object": "list",
            "data": entries,
            "has_more": False,
            "first_id": entries[0]["id"] if entries else None,
            "last_id": entries[-1]["id"] if entries else None,
        }
    )


def model_body(entry: dict[str, Any]) -> bytes:
    """One model by its id."""
    return json_line(entry)


def count_body(num_tokens: int) -> bytes:
    """Anthropic's count_tokens answer."""
    return json_line({"input_tokens": num_tokens})
