"""Reads server-sent events with the decoders of the real SDKs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from anthropic._streaming import SSEDecoder as AnthropicDecoder
from openai._streaming import SSEDecoder as OpenAIDecoder


def read_named(raw: bytes) -> list[tuple[str | None, Any]]:
    """(event, data) pairs as Anthropic's SDK sees them."""
    return read_named_pieces([raw])


def read_named_pieces(pieces: Iterable[bytes]) -> list[tuple[str | None, Any]]:
    return [(sse.event, json.loads(sse.data)) for sse in AnthropicDecoder().iter_bytes(iter(pieces))]


def read_data(raw: bytes) -> list[Any]:
    """Data as OpenAI's SDK sees it; `[DONE]` as that text."""
    return read_data_pieces([raw])


def read_data_pieces(pieces: Iterable[bytes]) -> list[Any]:
    found = [sse.data for sse in OpenAIDecoder().iter_bytes(iter(pieces)) if sse.data]
    return [data if data == "[DONE]" else json.loads(data) for data in found]


def single_bytes(raw: bytes) -> Iterable[bytes]:
    return (raw[i : i + 1] for i in range(len(raw)))
