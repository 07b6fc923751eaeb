"""OpenAI Responses, as a `Dialect`. Nothing is stored: a client sends its whole conversation.

Source: platform.openai.com/docs/api-reference/responses and /responses-streaming.
"""

from keepwarm.dialects.openai_responses.errors import error_reply
from keepwarm.dialects.openai_responses.parse import parse_count, parse_turn
from keepwarm.dialects.openai_responses.response import whole_answer
from keepwarm.dialects.openai_responses.stream import open_stream

NAME = "openai_responses"
LIST_FIELD = "input"

__all__ = ["LIST_FIELD", "NAME", "error_reply", "open_stream", "parse_count", "parse_turn", "whole_answer"]
