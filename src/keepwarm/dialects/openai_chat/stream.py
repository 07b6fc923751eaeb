"""An answer in the form of Chat Completions, streamed or whole.

role chunk  (content | reasoning_content | tool_calls chunk)*  finish chunk  [usage chunk]  [DONE]
"""

from __future__ import annotations

from typing import Any, assert_never

from keepwarm.chat.events import (
    Accepted,
    Admitted,
    ChatEvent,
    Failed,
    Finished,
    LogprobOf,
    ReasoningDelta,
    StopReason,
    TextDelta,
    TokenReport,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)
from keepwarm.core.errors import InvariantBroken, KeepwarmError, from_wire
from keepwarm.dialects.collected import Collected, CollectedPart
from keepwarm.dialects.dialect import AnswerHead
from keepwarm.dialects.openai_chat.errors import error_event
from keepwarm.dialects.sse import data_event, json_line
from keepwarm.dialects.turn import Turn

_PING = b": keep-alive\n\n"
_DONE = b"data: [DONE]\n\n"

_FINISH_REASONS: dict[StopReason, str] = {
    "end": "stop",
    "stop_string": "stop",
    "max_tokens": "length",
    "context_full": "length",
    "tool_use": "tool_calls",
}


def open_stream(head: AnswerHead, turn: Turn) -> ChunkStream:
    """A stream whose answer has not begun."""
    return ChunkStream(head, include_usage=turn.include_usage)


class ChunkStream:
    """One streamed answer."""

    def __init__(self, head: AnswerHead, *, include_usage: bool) -> None:
        self._head = _head(head, "chat.completion.chunk")
        self._include_usage = include_usage
        self._started = False
        self._num_calls = 0
        self._has_arguments = False
        """Of the open call: one without any still ends as valid JSON."""

    def feed(self, event: ChatEvent) -> bytes:
        """The bytes this event becomes, perhaps none."""
        match event:
            case Accepted():
                return b""
            case Admitted():
                return self._start()
            case TextDelta():
                return self._text(event)
            case ReasoningDelta():
                return self._chunk({"reasoning_content": event.text}) if event.text else b""
            case ToolCallStart():
                return self._call(event)
            case ToolCallArguments():
                return self._arguments(event.json)
            case ToolCallEnd():
                return b"" if self._has_arguments else self._arguments("{}")
            case Finished():
                return self._ending(event)
            case Failed():
                return self.fail(from_wire(event.error))
            case _:
                assert_never(event)

    def ping(self) -> bytes:
        return _PING

    def fail(self, error: KeepwarmError) -> bytes:
        return error_event(error)

    def _start(self) -> bytes:
        if self._started:
            return b""
        self._started = True
        return self._chunk({"role": "assistant", "content": ""})

    def _text(self, event: TextDelta) -> bytes:
        if not event.text and not event.logprobs:
            return b""
        return self._chunk({"content": event.text}, logprobs=_logprobs(event.logprobs))

    def _call(self, event: ToolCallStart) -> bytes:
        function = {"name": event.name, "arguments": ""}
        call = {"index": self._num_calls, "id": event.id, "type": "function", "function": function}
        self._num_calls += 1
        self._has_arguments = False
        return self._chunk({"tool_calls": [call]})

    def _arguments(self, piece: str) -> bytes:
        if not self._num_calls:
            raise InvariantBroken("arguments came outside a tool call")
        if not piece:
            return b""
        self._has_arguments = True
        call = {"index": self._num_calls - 1, "function": {"arguments": piece}}
        return self._chunk({"tool_calls": [call]})

    def _ending(self, finished: Finished) -> bytes:
        ending = self._chunk({}, finish_reason=_FINISH_REASONS[finished.reason])
        if self._include_usage:
            ending += data_event({**self._head, "choices": [], "usage": _usage(finished.usage)})
        return ending + _DONE

    def _chunk(
        self,
        delta: dict[str, Any],
        *,
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
    ) -> bytes:
        opening = b"" if self._started else self._start()
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        chunk = {**self._head, "choices": [choice]}
        if self._include_usage:
            chunk["usage"] = None
        return opening + data_event(chunk)


def whole_answer(head: AnswerHead, turn: Turn, collected: Collected) -> bytes:
    """The body of a complete answer that was not streamed."""
    finished = collected.end()
    choice = {
        "index": 0,
        "message": _message(collected),
        "logprobs": _logprobs(collected.logprobs),
        "finish_reason": _FINISH_REASONS[finished.reason],
    }
    answer = {**_head(head, "chat.completion"), "choices": [choice], "usage": _usage(finished.usage)}
    return json_line(answer)


def _head(head: AnswerHead, kind: str) -> dict[str, Any]:
    return {
        "id": head.request_id.replace("req_", "chatcmpl-", 1),
        "object": kind,
        "created": head.created_at,
        "model": head.model,
    }


def _message(collected: Collected) -> dict[str, Any]:
    """`content` is null only where the model said nothing and called a tool."""
    calls = [part for part in collected.parts if part.kind == "tool"]
    text = collected.joined("text")
    message: dict[str, Any] = {"role": "assistant", "content": text if text or not calls else None}
    message["refusal"] = None
    reasoning = collected.joined("reasoning")
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [_whole_call(part) for part in calls]
    return message


def _whole_call(part: CollectedPart) -> dict[str, Any]:
    function = {"name": part.name, "arguments": part.text or "{}"}
    return {"id": part.id, "type": "function", "function": function}


def _usage(usage: Usage) -> dict[str, Any]:
    """`cached_tokens` is written when it is zero too, since absent means unknown."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def _logprobs(reports: tuple[TokenReport, ...] | list[TokenReport]) -> dict[str, Any] | None:
    if not reports:
        return None
    content = [
        {**_logprob(report.chosen), "top_logprobs": [_logprob(top) for top in report.top]}
        for report in reports
    ]
    return {"content": content, "refusal": None}


def _logprob(logprob: LogprobOf) -> dict[str, Any]:
    return {
        "token": logprob.token,
        "logprob": max(logprob.logprob, -9999.0),  # JSON has no infinity
        "bytes": list(logprob.token_bytes),
    }
