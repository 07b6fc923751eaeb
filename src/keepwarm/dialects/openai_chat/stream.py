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
from keepwarm.dialects.collected import Collected
from keepwarm.dialects.dialect import AnswerHead
from keepwarm.dialects.openai_chat.calls import OpenCall, whole_calls
from keepwarm.dialects.openai_chat.tools import CallForm
from keepwarm.dialects.openai_errors import error_body
from keepwarm.dialects.openai_logprobs import logprob_entries
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
    return ChunkStream(head, include_usage=turn.include_usage, form=_form(turn))


class ChunkStream:
    """One streamed answer."""

    def __init__(self, head: AnswerHead, *, include_usage: bool, form: CallForm) -> None:
        self._head = _head(head, "chat.completion.chunk")
        self._include_usage = include_usage
        self._form = form
        self._started = False
        self._num_calls = 0
        self._call: OpenCall | None = None

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
                return self._start_call(event)
            case ToolCallArguments():
                return self._delta(self._open_call().arguments(event.json))
            case ToolCallEnd():
                return self._delta(self._open_call().end())
            case Finished():
                return self._ending(event)
            case Failed():
                return self.fail(from_wire(event.error))
            case _:
                assert_never(event)

    def ping(self) -> bytes:
        return _PING

    def progress(self) -> bytes:
        return self._chunk({})

    def tells(self, error: KeepwarmError) -> bool:
        return False

    def fail(self, error: KeepwarmError) -> bytes:
        return data_event(error_body(error))  # no [DONE] follows

    def _start(self) -> bytes:
        if self._started:
            return b""
        self._started = True
        return self._chunk({"role": "assistant", "content": ""})

    def _text(self, event: TextDelta) -> bytes:
        if not event.text and not event.logprobs:
            return b""
        return self._chunk({"content": event.text}, logprobs=_logprobs(event.logprobs))

    def _start_call(self, event: ToolCallStart) -> bytes:
        self._call = OpenCall(event, self._num_calls, self._form)
        self._num_calls += 1
        return self._delta(self._call.start())

    def _open_call(self) -> OpenCall:
        if self._call is None:
            raise InvariantBroken("arguments came outside a tool call")
        return self._call

    def _delta(self, delta: dict[str, Any] | None) -> bytes:
        return self._chunk(delta) if delta else b""

    def _ending(self, finished: Finished) -> bytes:
        ending = self._chunk({}, finish_reason=_finish_reason(finished, self._form))
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
    form = _form(turn)
    choice = {
        "index": 0,
        "message": _message(collected, form),
        "logprobs": _logprobs(collected.logprobs),
        "finish_reason": _finish_reason(finished, form),
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


def _form(turn: Turn) -> CallForm:
    return turn.answer_form if isinstance(turn.answer_form, CallForm) else CallForm()


def _finish_reason(finished: Finished, form: CallForm) -> str:
    if form.is_legacy and finished.reason == "tool_use":
        return "function_call"
    return _FINISH_REASONS[finished.reason]


def _message(collected: Collected, form: CallForm) -> dict[str, Any]:
    """`content` is null only where the model said nothing and called a tool."""
    calls = [part for part in collected.parts if part.kind == "tool"]
    text = collected.joined("text")
    message: dict[str, Any] = {"role": "assistant", "content": text if text or not calls else None}
    message["refusal"] = None
    reasoning = collected.joined("reasoning")
    if reasoning:
        message["reasoning_content"] = reasoning
    return message | whole_calls(calls, form)


def _usage(usage: Usage) -> dict[str, Any]:
    """`cached_tokens` is written when it is zero too, since absent means unknown."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _logprobs(reports: tuple[TokenReport, ...] | list[TokenReport]) -> dict[str, Any] | None:
    if not reports:
        return None
    return {"content": logprob_entries(reports), "refusal": None}
