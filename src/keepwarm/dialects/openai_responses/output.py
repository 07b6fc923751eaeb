"""Output items of a response, each a small state machine: what it is now, and the events that tell it.

output_item.added  (content_part.added | reasoning_summary_part.added)?  …delta*  …done
(content_part.done | reasoning_summary_part.done)?  output_item.done
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from keepwarm.chat.events import TokenReport
from keepwarm.dialects.arguments import parse_arguments
from keepwarm.dialects.custom_tools import CustomInput
from keepwarm.dialects.openai_logprobs import logprob_entries
from keepwarm.dialects.openai_responses.replayable import sealed
from keepwarm.dialects.openai_responses.tools import ToolAddress

Event = tuple[str, dict[str, Any]]
"""An event's type without `response.`, and its fields but for `type` and `sequence_number`."""

_PREFIXES = {"text": "msg", "reasoning": "rs", "function": "fc", "custom": "ctc", "search": "tsc"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which item of which answer."""

    answer: str
    index: int

    def item_id(self, kind: str) -> str:
        return f"{_PREFIXES[kind]}_{self.answer}_{self.index}"


class OutputItem(Protocol):
    """One item: `start`, then `add` for each piece, then `end`."""

    kind: str

    def start(self) -> list[Event]:
        """The item is there, and empty."""

    def add(self, piece: str, reports: Sequence[TokenReport] = ()) -> list[Event]:
        """More of it."""

    def end(self, status: str) -> list[Event]:
        """It is complete, or as complete as it will get."""

    def item(self, status: str) -> dict[str, Any]:
        """The item as it is now."""


class TextItem:
    """What the model says."""

    kind = "text"

    def __init__(self, place: Place) -> None:
        self._id = place.item_id("text")
        self._index = place.index
        self._pieces: list[str] = []
        self._logprobs: list[dict[str, Any]] = []

    def start(self) -> list[Event]:
        return [
            _added(self._index, self._item("in_progress", [])),
            ("content_part.added", self._at() | {"part": self._part()}),
        ]

    def add(self, piece: str, reports: Sequence[TokenReport] = ()) -> list[Event]:
        logprobs = logprob_entries(reports)
        self._pieces.append(piece)
        self._logprobs += logprobs
        return [("output_text.delta", self._at() | {"delta": piece, "logprobs": logprobs})]

    def end(self, status: str) -> list[Event]:
        done = {"text": "".join(self._pieces), "logprobs": self._logprobs}
        return [
            ("output_text.done", self._at() | done),
            ("content_part.done", self._at() | {"part": self._part()}),
            _done(self._index, self.item(status)),
        ]

    def item(self, status: str) -> dict[str, Any]:
        return self._item(status, [self._part()])

    def _item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        }

    def _part(self) -> dict[str, Any]:
        text = "".join(self._pieces)
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": self._logprobs}

    def _at(self) -> dict[str, Any]:
        return {"item_id": self._id, "output_index": self._index, "content_index": 0}


class ReasoningItem:
    """What the model thinks: told as a summary, or as it is."""

    kind = "reasoning"

    def __init__(self, place: Place, *, summarises: bool, seals: bool) -> None:
        self._id = place.item_id("reasoning")
        self._index = place.index
        self._summarises = summarises
        self._seals = seals
        self._pieces: list[str] = []

    def start(self) -> list[Event]:
        part = "reasoning_summary_part.added" if self._summarises else "content_part.added"
        return [_added(self._index, self._item(None)), (part, self._at() | {"part": self._part("")})]

    def add(self, piece: str, reports: Sequence[TokenReport] = ()) -> list[Event]:
        self._pieces.append(piece)
        return [(f"{self._name()}.delta", self._at() | {"delta": piece})]

    def end(self, status: str) -> list[Event]:
        text = "".join(self._pieces)
        part = "reasoning_summary_part.done" if self._summarises else "content_part.done"
        return [
            (f"{self._name()}.done", self._at() | {"text": text}),
            (part, self._at() | {"part": self._part(text)}),
            _done(self._index, self.item(status)),
        ]

    def item(self, status: str) -> dict[str, Any]:
        return self._item("".join(self._pieces))

    def _item(self, text: str | None) -> dict[str, Any]:
        parts = [] if text is None else [self._part(text)]
        item: dict[str, Any] = {"id": self._id, "type": "reasoning"}
        item["summary"] = parts if self._summarises else []
        if not self._summarises:
            item["content"] = parts
        if self._seals:
            item["encrypted_content"] = sealed(text or "")
        return item

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": "summary_text" if self._summarises else "reasoning_text", "text": text}

    def _name(self) -> str:
        return "reasoning_summary_text" if self._summarises else "reasoning_text"

    def _at(self) -> dict[str, Any]:
        index = {"summary_index" if self._summarises else "content_index": 0}
        return {"item_id": self._id, "output_index": self._index} | index


class CallItem:
    """A call of a function."""

    kind = "function"

    def __init__(self, place: Place, address: ToolAddress, call_id: str) -> None:
        self._id = place.item_id(self.kind)
        self._index = place.index
        self._call = {"call_id": call_id, "name": address.name}
        if address.namespace:
            self._call["namespace"] = address.namespace
        self._pieces: list[str] = []

    def start(self) -> list[Event]:
        return [_added(self._index, self._item("in_progress", ""))]

    def add(self, piece: str, reports: Sequence[TokenReport] = ()) -> list[Event]:
        self._pieces.append(piece)
        return [("function_call_arguments.delta", self._at() | {"delta": piece})]

    def end(self, status: str) -> list[Event]:
        """A call without arguments still ends as valid JSON."""
        missing = [] if self._pieces else self.add("{}")
        done = self._at() | {"arguments": "".join(self._pieces)}
        return [
            *missing,
            ("function_call_arguments.done", done),
            _done(self._index, self.item(status)),
        ]

    def item(self, status: str) -> dict[str, Any]:
        return self._item(status, "".join(self._pieces) or "{}")

    def _item(self, status: str, arguments: str) -> dict[str, Any]:
        head = {"id": self._id, "type": "function_call", "status": status}
        return {**head, "arguments": arguments, **self._call}

    def _at(self) -> dict[str, Any]:
        return {"item_id": self._id, "output_index": self._index}


class CustomCallItem(CallItem):
    """A call of a tool that takes free text."""

    kind = "custom"

    def __init__(self, place: Place, address: ToolAddress, call_id: str) -> None:
        super().__init__(place, address, call_id)
        self._input = CustomInput()

    def start(self) -> list[Event]:
        return [_added(self._index, self._item("in_progress", ""))]

    def add(self, piece: str, reports: Sequence[TokenReport] = ()) -> list[Event]:
        return self._delta(self._input.feed(piece))

    def end(self, status: str) -> list[Event]:
        rest = self._delta(self._input.finish())
        done = self._at() | {"input": self._input.text}
        return [*rest, ("custom_tool_call_input.done", done), _done(self._index, self.item(status))]

    def item(self, status: str) -> dict[str, Any]:
        return self._item(status, self._input.text)

    def _delta(self, piece: str) -> list[Event]:
        return [("custom_tool_call_input.delta", self._at() | {"delta": piece})] if piece else []

    def _item(self, status: str, text: str) -> dict[str, Any]:
        head = {"id": self._id, "type": "custom_tool_call", "status": status}
        return {**head, "input": text, **self._call}


class SearchCallItem(CallItem):
    """A call of the client's search for tools: told as a whole."""

    kind = "search"

    def add(self, piece: str, reports: Sequence[TokenReport] = ()) -> list[Event]:
        self._pieces.append(piece)
        return []

    def end(self, status: str) -> list[Event]:
        return [_done(self._index, self.item(status))]

    def _item(self, status: str, arguments: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "tool_search_call",
            "status": status,
            "execution": "client",
            "arguments": parse_arguments(arguments),
            "call_id": self._call["call_id"],
        }


_CALL_ITEMS = {"function": CallItem, "custom": CustomCallItem, "search": SearchCallItem}


def call_item(place: Place, address: ToolAddress, call_id: str) -> CallItem:
    """A call in the client's own terms."""
    return _CALL_ITEMS[address.kind](place, address, call_id)


def _added(index: int, item: dict[str, Any]) -> Event:
    return ("output_item.added", {"output_index": index, "item": item})


def _done(index: int, item: dict[str, Any]) -> Event:
    return ("output_item.done", {"output_index": index, "item": item})
