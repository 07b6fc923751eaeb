"""OpenAI Chat Completions, as a `Dialect`.

Source: platform.openai.com/docs/api-reference/chat and /chat-streaming.
"""

from keepwarm.dialects.openai_chat.parse import parse_count, parse_turn
from keepwarm.dialects.openai_chat.stream import open_stream, whole_answer
from keepwarm.dialects.openai_errors import error_reply

NAME = "openai_chat"
LIST_FIELD = "messages"

__all__ = ["LIST_FIELD", "NAME", "error_reply", "open_stream", "parse_count", "parse_turn", "whole_answer"]
