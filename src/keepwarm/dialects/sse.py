"""Server-sent events as bytes."""

from __future__ import annotations

from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode

# JSON leaves these unescaped, and readers that cut a stream with `str.splitlines` break on them.
_LINE_BREAKS = (
    (b"\xc2\x85", b"\\u0085"),
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
)


def json_line(value: Any) -> bytes:
    """The value as JSON that no reader takes for two lines."""
    raw = _encode(value)
    if not raw.isascii():
        for character, escaped in _LINE_BREAKS:
            raw = raw.replace(character, escaped)
    return raw


def comment(text: str) -> bytes:
    """A line that readers of events pass over, with the blank line after it; `text` is one ASCII line."""
    return b": " + text.encode("ascii") + b"\n\n"


def named_event(name: bytes, value: Any) -> bytes:
    """An event with a name (Anthropic)."""
    return b"event: " + name + b"\ndata: " + json_line(value) + b"\n\n"


def data_event(value: Any) -> bytes:
    """An event without a name (OpenAI)."""
    return b"data: " + json_line(value) + b"\n\n"
