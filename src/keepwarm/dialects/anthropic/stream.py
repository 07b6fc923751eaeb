"""An answer in Anthropic's form, streamed or whole.

    message_start  ping  (content_block_start  content_block_delta*  content_block_stop)*
    message_delta  message_stop

`message_start` carries the usage, so it waits for `Admitted`, which brings the cached tokens.

    events:   text, reasoning, tool call      block that is open
    state:    none ──start──▶ text ◀──────▶ thinking, tool_use    (close before changing kind)
"""

from __future__ import annotations

from typing import Any, assert_never

import msgspec

from keepwarm.chat.events import (
    Accepted,
    Admitted,
    ChatEvent,
    Failed,
    Finished,
    ReasoningDelta,
    StopReason,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)
from keepwarm.core.errors import InvariantBroken, KeepwarmError, from_wire
from keepwarm.dialects.anthropic.blocks import SIGNATURE
from keepwarm.dialects.anthropic.errors import error_event
from keepwarm.dialects.collected import Collected, CollectedPart
from keepwarm.dialects.dialect import AnswerHead
from keepwarm.dialects.sse import json_line, named_event
from keepwarm.dialects.turn import Turn

_PING = b'event: ping\ndata: {"type":"ping"}\n\n'

_EMPTY: dict[str, dict[str, str]] = {"text": {"text": ""}, "thinking": {"thinking": "", "signature": ""}}

_DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}
_NOTHING_YET = {
    "type": "message_delta",
    "delta": {"stop_reason": None, "stop_sequence": None},
    "usage": {"output_tokens": 0},
}

_STOP_REASONS: dict[StopReason, str] = {
    "end": "end_turn",
    "stop_string": "stop_sequence",
    "max_tokens": "max_tokens",
    "context_full": "model_context_window_exceeded",
    "tool_use": "tool_use",
}


def open_stream(head: AnswerHead, turn: Turn) -> MessageStream:
    """A stream whose answer has not begun."""
    return MessageStream(head)


class MessageStream:
    """One streamed answer."""

    def __init__(self, head: AnswerHead) -> None:
        self._head = head
        self._started = False
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._index = -1
        self._open = ""
        """The open block's type, "" when none is open."""
        self._delta_begins = b""
        """A delta of the open block up to its piece, once one was sent: the rest of them begin alike."""

    def feed(self, event: ChatEvent) -> bytes:
        """The bytes this event becomes, perhaps none."""
        match event:
            case Accepted():
                self._prompt_tokens = event.prompt_tokens
                return b""
            case Admitted():
                self._cached_tokens = event.cached_tokens
                return self._start()
            case TextDelta():
                return self._delta("text", "text_delta", "text", event.text)
            case ReasoningDelta():
                return self._delta("thinking", "thinking_delta", "thinking", event.text)
            case ToolCallStart():
                block = {"type": "tool_use", "id": event.id, "name": event.name, "input": {}}
                return self._begin_block(block)
            case ToolCallArguments():
                return self._arguments(event.json)
            case ToolCallEnd():
                return self._end_block()
            case Finished():
                return self._start() + self._end_block() + _ending(event)
            case Failed():
                return self.fail(from_wire(event.error))
            case _:
                assert_never(event)

    def ping(self) -> bytes:
        return _PING

    def progress(self) -> bytes:
        """An empty delta of what is open. Before the answer has begun this begins it, with the usage
        known so far; the last `message_delta` brings the true one."""
        if self._open:
            return self._empty_delta()
        return self._start() + named_event(b"message_delta", _NOTHING_YET)

    def tells(self, error: KeepwarmError) -> bool:
        return False

    def fail(self, error: KeepwarmError) -> bytes:
        return error_event(error, self._head.request_id)

    def _start(self) -> bytes:
        if self._started:
            return b""
        self._started = True
        usage = Usage(prompt_tokens=self._prompt_tokens, cached_tokens=self._cached_tokens, output_tokens=0)
        message = _message(self._head, content=[], stop_reason=None, stop_sequence=None, usage=usage)
        return named_event(b"message_start", {"type": "message_start", "message": message}) + _PING

    def _delta(self, block: str, delta: str, key: str, piece: str) -> bytes:
        """More of a block of this type, opened first where another or none is open."""
        if not piece:
            return b""
        if self._open == block and self._delta_begins:
            return b"%b%b}}\n\n" % (self._delta_begins, json_line(piece))
        opening = b"" if self._open == block else self._begin_block({"type": block, **_EMPTY[block]})
        body = {"type": "content_block_delta", "index": self._index, "delta": {"type": delta, key: piece}}
        event = named_event(b"content_block_delta", body)
        self._delta_begins = event[: -len(json_line(piece)) - len(b"}}\n\n")]
        return opening + event

    def _empty_delta(self) -> bytes:
        delta, key = _DELTAS[self._open]
        body = {"type": "content_block_delta", "index": self._index, "delta": {"type": delta, key: ""}}
        return named_event(b"content_block_delta", body)

    def _arguments(self, piece: str) -> bytes:
        if self._open != "tool_use":
            raise InvariantBroken("arguments came outside a tool call")
        return self._delta("tool_use", "input_json_delta", "partial_json", piece)

    def _begin_block(self, block: dict[str, Any]) -> bytes:
        closing = self._start() + self._end_block()
        self._delta_begins = b""
        self._index += 1
        self._open = block["type"]
        body = {"type": "content_block_start", "index": self._index, "content_block": block}
        return closing + named_event(b"content_block_start", body)

    def _end_block(self) -> bytes:
        if not self._open:
            return b""
        signed = self._signature() if self._open == "thinking" else b""
        self._open = ""
        body = {"type": "content_block_stop", "index": self._index}
        return signed + named_event(b"content_block_stop", body)

    def _signature(self) -> bytes:
        body = {
            "type": "content_block_delta",
            "index": self._index,
            "delta": {"type": "signature_delta", "signature": SIGNATURE},
        }
        return named_event(b"content_block_delta", body)


def whole_answer(head: AnswerHead, turn: Turn, collected: Collected) -> bytes:
    """The body of a complete answer that was not streamed."""
    finished = collected.end()
    return json_line(
        _message(
            head,
            content=[_block(part) for part in collected.parts],
            stop_reason=_STOP_REASONS[finished.reason],
            stop_sequence=finished.stop_string,
            usage=finished.usage,
        )
    )


def _ending(finished: Finished) -> bytes:
    delta = {"stop_reason": _STOP_REASONS[finished.reason], "stop_sequence": finished.stop_string}
    body = {"type": "message_delta", "delta": delta, "usage": _usage(finished.usage)}
    return named_event(b"message_delta", body) + named_event(b"message_stop", {"type": "message_stop"})


def _message(
    head: AnswerHead,
    *,
    content: list[dict[str, Any]],
    stop_reason: str | None,
    stop_sequence: str | None,
    usage: Usage,
) -> dict[str, Any]:
    return {
        "id": head.request_id.replace("req_", "msg_", 1),
        "type": "message",
        "role": "assistant",
        "model": head.model,
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": stop_sequence,
        "usage": _usage(usage),
    }


def _usage(usage: Usage) -> dict[str, int]:
    """`input_tokens` leaves out the cached ones; zeros are written, since absent means unknown."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
    }


def _block(part: CollectedPart) -> dict[str, Any]:
    match part.kind:
        case "text":
            return {"type": "text", "text": part.text}
        case "reasoning":
            return {"type": "thinking", "thinking": part.text, "signature": SIGNATURE}
        case _:
            return {"type": "tool_use", "id": part.id, "name": part.name, "input": _input(part.text)}


def _input(text: str) -> dict[str, Any]:
    """A call's arguments; what is no JSON object goes out under a name that clients know."""
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Any])
    except msgspec.DecodeError:
        return {"__unparsedToolInput": text}
