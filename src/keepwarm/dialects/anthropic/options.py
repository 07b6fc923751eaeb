"""What a Messages body says beside the conversation: thinking, the answer's form, the session."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from keepwarm.dialects.body import JsonBody, one_of
from keepwarm.dialects.errors import BadField

_THINKING_TYPES = ("enabled", "adaptive", "disabled")
_NO_OP_EDIT = "clear_thinking_20251015"
"""Which thoughts of old turns the model sees again is for its template to say."""
_OLDER_USER_ID = re.compile(r"_session_(?P<session>[0-9a-fA-F-]+)$")


class ThinkingIn(msgspec.Struct):
    type: str


class FormatIn(msgspec.Struct):
    type: str
    schema: dict[str, Any] | None = None


class OutputConfigIn(msgspec.Struct):
    format: FormatIn | None = None


class EditIn(msgspec.Struct):
    type: str


class ContextManagementIn(msgspec.Struct):
    edits: list[EditIn] = []


class MetadataIn(msgspec.Struct):
    user_id: Any = None


_THINKING = msgspec.json.Decoder(ThinkingIn)
_OUTPUT_CONFIG = msgspec.json.Decoder(OutputConfigIn)
_FORMAT = msgspec.json.Decoder(FormatIn)
_CONTEXT_MANAGEMENT = msgspec.json.Decoder(ContextManagementIn)
_METADATA = msgspec.json.Decoder(MetadataIn)
_USER_ID = msgspec.json.Decoder(dict[str, Any])


def read_reasoning(fields: JsonBody) -> bool:
    """This API's models think where they are asked to, and not otherwise. Raises `BadField`."""
    thinking = fields.optional("thinking", _THINKING)
    if thinking is None:
        return False
    if thinking.type not in _THINKING_TYPES:
        raise one_of("thinking.type", thinking.type, _THINKING_TYPES)
    return thinking.type != "disabled"


def read_output_schema(fields: JsonBody) -> dict[str, Any] | None:
    """`output_format` is how `output_config.format` was called in beta. Raises `BadField`."""
    older = fields.optional("output_format", _FORMAT)
    config = fields.optional("output_config", _OUTPUT_CONFIG)
    if config is not None and config.format is not None:
        return _schema("output_config.format", config.format)
    return None if older is None else _schema("output_format", older)


def read_unserved_edits(fields: JsonBody) -> list[str]:
    """Clearing the context is left to the client: what it sends is what the model reads."""
    management = fields.optional("context_management", _CONTEXT_MANAGEMENT)
    edits = management.edits if management else []
    return [f"context_management:{edit.type}" for edit in edits if edit.type != _NO_OP_EDIT]


def read_session(fields: JsonBody) -> str:
    """Out of `metadata.user_id`, which never comes near a prompt: JSON, or of the older form."""
    metadata = fields.optional("metadata", _METADATA)
    user_id = metadata.user_id if metadata else None
    if not isinstance(user_id, str):
        return ""
    try:
        session = _USER_ID.decode(user_id).get("session_id")
    except (msgspec.DecodeError, RecursionError):
        older = _OLDER_USER_ID.search(user_id)
        session = older["session"] if older else None
    return session if isinstance(session, str) else ""


def _schema(field: str, form: FormatIn) -> dict[str, Any]:
    if form.type != "json_schema":
        raise one_of(f"{field}.type", form.type, ("json_schema",))
    if form.schema is None:
        raise BadField(f"{field}.schema", "required")
    return form.schema
