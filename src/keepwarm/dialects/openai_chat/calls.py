"""A call in the answer's form: of a function, of a custom tool, or the older `function_call`."""

from __future__ import annotations

from typing import Any

from keepwarm.chat.events import ToolCallStart
from keepwarm.dialects.collected import CollectedPart
from keepwarm.dialects.custom_tools import CustomInput, custom_text
from keepwarm.dialects.openai_chat.tools import CallForm


class OpenCall:
    """One call while it is streamed: what each event adds to the chunk's `delta`, None for nothing.
    The older form has room for the first call alone."""

    def __init__(self, event: ToolCallStart, index: int, form: CallForm) -> None:
        self._event = event
        self._index = index
        self._is_legacy = form.is_legacy
        self._is_left_out = form.is_legacy and index > 0
        self._custom = CustomInput() if event.name in form.custom_names else None
        self._has_arguments = False

    def start(self) -> dict[str, Any] | None:
        """The call is named."""
        if self._is_left_out:
            return None
        if self._is_legacy:
            return {"function_call": {"name": self._event.name, "arguments": ""}}
        call = {"index": self._index, "id": self._event.id}
        if self._custom:
            return _calls(call | {"type": "custom", "custom": {"name": self._event.name, "input": ""}})
        function = {"name": self._event.name, "arguments": ""}
        return _calls(call | {"type": "function", "function": function})

    def arguments(self, piece: str) -> dict[str, Any] | None:
        """More of the arguments."""
        if not piece or self._is_left_out:
            return None
        self._has_arguments = True
        if self._is_legacy:
            return {"function_call": {"arguments": piece}}
        if self._custom:
            return self._input(self._custom.feed(piece))
        return _calls({"index": self._index, "function": {"arguments": piece}})

    def end(self) -> dict[str, Any] | None:
        """A call without arguments still ends as valid JSON."""
        if self._custom:
            return self._input(self._custom.finish())
        return None if self._has_arguments else self.arguments("{}")

    def _input(self, piece: str) -> dict[str, Any] | None:
        return _calls({"index": self._index, "custom": {"input": piece}}) if piece else None


def whole_calls(parts: list[CollectedPart], form: CallForm) -> dict[str, Any]:
    """What the calls add to a whole answer's message."""
    if not parts:
        return {}
    if form.is_legacy:
        return {"function_call": _function(parts[0])}
    return {"tool_calls": [_whole_call(part, form) for part in parts]}


def _calls(call: dict[str, Any]) -> dict[str, Any]:
    return {"tool_calls": [call]}


def _whole_call(part: CollectedPart, form: CallForm) -> dict[str, Any]:
    if part.name in form.custom_names:
        custom = {"name": part.name, "input": custom_text(part.text)}
        return {"id": part.id, "type": "custom", "custom": custom}
    return {"id": part.id, "type": "function", "function": _function(part)}


def _function(part: CollectedPart) -> dict[str, Any]:
    return {"name": part.name, "arguments": part.text or "{}"}
