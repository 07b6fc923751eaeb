"""Anthropic Messages, as a `Dialect`.

Source: platform.claude.com/docs/en/api/messages, /streaming and /errors.
"""

from keepwarm.dialects.anthropic.errors import error_reply
from keepwarm.dialects.anthropic.parse import parse_count, parse_turn
from keepwarm.dialects.anthropic.stream import open_stream, whole_answer

NAME = "anthropic"
LIST_FIELD = "messages"

__all__ = ["LIST_FIELD", "NAME", "error_reply", "open_stream", "parse_count", "parse_turn", "whole_answer"]
