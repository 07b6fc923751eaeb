"""The response object, as the stream tells it at its start and its end, and as a whole answer."""

from __future__ import annotations

from typing import Any

from keepwarm.chat.events import Finished, Usage
from keepwarm.core.errors import KeepwarmError
from keepwarm.dialects.collected import Collected, CollectedPart
from keepwarm.dialects.dialect import AnswerHead
from keepwarm.dialects.openai_responses.errors import failure
from keepwarm.dialects.openai_responses.form import ResponseForm, form_of
from keepwarm.dialects.openai_responses.output import (
    OutputItem,
    Place,
    ReasoningItem,
    TextItem,
    call_item,
)
from keepwarm.dialects.sse import json_line
from keepwarm.dialects.turn import Turn

_CUT_SHORT = ("max_tokens", "context_full")


class Response:
    """One response and the items it consists of so far."""

    def __init__(self, head: AnswerHead, form: ResponseForm) -> None:
        self._head = head
        self._form = form
        self._answer = head.request_id.removeprefix("req_")
        self.output: list[dict[str, Any]] = []

    def text_item(self) -> OutputItem:
        return TextItem(self._place())

    def reasoning_item(self) -> OutputItem:
        form = self._form
        return ReasoningItem(self._place(), summarises=form.summarises, seals=form.seals_reasoning)

    def call_item(self, name: str, call_id: str) -> OutputItem:
        return call_item(self._place(), self._form.tools.address(name), call_id)

    def in_progress(self) -> dict[str, Any]:
        """Before its end."""
        return self._object("in_progress")

    def finished(self, finished: Finished) -> dict[str, Any]:
        """At its end."""
        status = status_of(finished)
        fields: dict[str, Any] = {"usage": _usage(finished.usage)}
        if status == "completed":
            fields["completed_at"] = self._head.created_at + round(finished.timings.total_s)
        else:
            fields["incomplete_details"] = {"reason": "max_output_tokens"}
        return self._object(status) | fields

    def failed(self, error: KeepwarmError) -> dict[str, Any]:
        """At an end that is none."""
        return self._object("failed") | {"error": failure(error)}

    def _place(self) -> Place:
        return Place(answer=self._answer, index=len(self.output))

    def _object(self, status: str) -> dict[str, Any]:
        return {
            "id": f"resp_{self._answer}",
            "object": "response",
            "created_at": self._head.created_at,
            "status": status,
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            "model": self._head.model,
            "output": self.output,
            "usage": None,
            **self._form.echo,
        }


def status_of(finished: Finished) -> str:
    """Of the response, and of an item that its end found open."""
    return "incomplete" if finished.reason in _CUT_SHORT else "completed"


def whole_answer(head: AnswerHead, turn: Turn, collected: Collected) -> bytes:
    """The body of a complete answer that was not streamed."""
    finished = collected.end()
    response = Response(head, form_of(turn))
    logprobs = list(collected.logprobs)
    for number, part in enumerate(collected.parts, start=1):
        item = _item(response, part)
        if part.text:
            item.add(part.text, logprobs if part.kind == "text" else ())
            logprobs = [] if part.kind == "text" else logprobs  # told once, with the first words
        is_last = number == len(collected.parts) and part.kind != "tool"
        status = status_of(finished) if is_last else "completed"
        item.end(status)
        response.output.append(item.item(status))
    return json_line(response.finished(finished))


def _item(response: Response, part: CollectedPart) -> OutputItem:
    match part.kind:
        case "text":
            return response.text_item()
        case "reasoning":
            return response.reasoning_item()
        case _:
            return response.call_item(part.name, part.id)


def _usage(usage: Usage) -> dict[str, Any]:
    """Zeros are written, since absent means unknown."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
    }
