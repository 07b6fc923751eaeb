"""Folded messages in a template's own form, every string of the caller's shielded.

A template that knows tools gets `tools`, `tool_calls` and messages of role "tool". One that does
not gets them as text, in the style of Hermes: the system message begins with a preamble that lists
the tools; a call is `<tool_call>{"name": …, "arguments": {…}}</tool_call>` in the assistant's
text; a result is `<tool_response>…</tool_response>` in a user message.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keepwarm.chat.conversation import one_call_a_message, tool_result_text
from keepwarm.chat.messages import Message, Reasoning, Text, ToolResult, ToolSpec, ToolUse
from keepwarm.chat.template import TemplateMessage

_SHORT_ID_CHARACTERS = 9

_PREAMBLE = """\
You can call tools. These are described here, one JSON object a line:
<tools>
{tools}
</tools>
To call one, write its name and arguments as JSON between <tool_call> and </tool_call>, once a call:
<tool_call>
{{"name": "the tool's name", "arguments": {{"parameter": "value"}}}}
</tool_call>
What it returns comes back between <tool_response> and </tool_response>."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageForm:
    """What a template takes."""

    takes_tools: bool
    takes_system: bool
    takes_parts: bool
    """Content as [{"type": "text", "text": …}] instead of a string."""
    arguments_as_text: bool = False
    """A call's arguments as JSON text, which the template puts in as it is, instead of an object."""
    takes_long_call_ids: bool = True
    """False: ids of exactly nine letters and digits."""
    takes_parallel_calls: bool = True
    """False: several calls of one message become as many messages, each with its result."""
    takes_text_after_results: bool = True
    """False: what the user says beside results goes to the last of them."""
    takes_text_beside_thoughts: bool = True
    """False: in a message that calls, text goes behind the thoughts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedTools:
    """A conversation's tools, written once: for the template's own `tools`, or as a preamble."""

    native: list[dict[str, Any]] | None = None
    preamble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What stands for a whole assistant message, and for what it thought."""

    content: str
    reasoning: str = ""


class MessageWriter:
    """Writes one conversation's messages. `shield` guards a string of the caller's.

    `places` stand for whole assistant messages, by the message's index.
    """

    def __init__(
        self,
        form: MessageForm,
        *,
        shield: Callable[[str], str],
        places: Mapping[int, Place],
    ) -> None:
        self._form = form
        self._shield = shield
        self._places = places
        self._tool_names: dict[str, str] = {}

    def offer(self, tools: Sequence[ToolSpec]) -> OfferedTools:
        """As the template takes them."""
        if not tools:
            return OfferedTools()
        described = [self._describe(tool) for tool in tools]
        if self._form.takes_tools:
            return OfferedTools(native=[{"type": "function", "function": tool} for tool in described])
        return OfferedTools(preamble=_PREAMBLE.format(tools="\n".join(map(_json, described))))

    def messages(self, messages: Sequence[Message], offered: OfferedTools) -> list[TemplateMessage]:
        """All of them, in order."""
        written: list[TemplateMessage] = []
        for index, message in self._numbered(messages):
            if message.role == "assistant":
                written.append(self._assistant(index, message))
            elif message.role == "user":
                written += self._user(message)
            else:
                written.append({"role": "system", "content": self._shield(message.text())})
        _place_preamble(written, offered.preamble)
        if not self._form.takes_system:
            _move_system_to_user(written)
        if self._form.takes_parts:
            for entry in written:
                entry["content"] = [{"type": "text", "text": entry["content"]}]
        return written

    def _numbered(self, messages: Sequence[Message]) -> Iterable[tuple[int | None, Message]]:
        """Each with the number its place goes by; one that was split has none."""
        if self._form.takes_parallel_calls:
            return enumerate(messages)
        return one_call_a_message(messages)

    def _assistant(self, index: int | None, message: Message) -> TemplateMessage:
        uses = [part for part in message.parts if isinstance(part, ToolUse)]
        self._tool_names.update((use.id, use.name) for use in uses)
        place = self._places.get(index) if index is not None else None
        if not self._form.takes_tools:
            content = place.content if place else self._text_with_calls(message)
        else:
            content = place.content if place else self._shield(message.text())
        entry: TemplateMessage = {"role": "assistant", "content": content}
        reasoning = place.reasoning if place else self._reasoning(message)
        if reasoning and uses and content and not self._form.takes_text_beside_thoughts:
            reasoning, entry["content"] = reasoning if place else f"{reasoning}\n\n{content}", ""
        if reasoning:
            entry["reasoning_content"] = entry["thinking"] = reasoning
        if not self._form.takes_tools:
            return entry
        if uses:
            entry["tool_calls"] = [self._call(use) for use in uses]
            if place:  # a template may drop the text beside calls, but never a call's name
                entry["tool_calls"][0]["function"]["name"] = place.content
        return entry

    def _reasoning(self, message: Message) -> str:
        return self._shield("".join(part.text for part in message.parts if isinstance(part, Reasoning)))

    def _call(self, use: ToolUse) -> dict[str, Any]:
        arguments = self._arguments(use)
        function = {
            "name": self._shield(use.name),
            "arguments": _json(arguments) if self._form.arguments_as_text else arguments,
        }
        return {"id": self._call_id(use.id), "type": "function", "function": function}

    def _call_id(self, given: str) -> str:
        is_short = len(given) == _SHORT_ID_CHARACTERS and given.isascii() and given.isalnum()
        if self._form.takes_long_call_ids or is_short:
            return self._shield(given)
        return hashlib.blake2b(given.encode()).hexdigest()[:_SHORT_ID_CHARACTERS]

    def _arguments(self, use: ToolUse) -> dict[str, Any]:
        """Templates walk over an object; what was none is kept as one's only value."""
        if isinstance(use.arguments, str):
            return {"unparsed_arguments": self._shield(use.arguments)}
        shielded: dict[str, Any] = self._shield_json(use.arguments)
        return shielded

    def _text_with_calls(self, message: Message) -> str:
        blocks = [self._shield(message.text())] if message.text() else []
        for part in message.parts:
            if isinstance(part, ToolUse):
                call = {"name": self._shield(part.name), "arguments": self._arguments(part)}
                blocks.append(f"<tool_call>\n{_json(call)}\n</tool_call>")
        return "\n".join(blocks)

    def _user(self, message: Message) -> list[TemplateMessage]:
        results = [part for part in message.parts if isinstance(part, ToolResult)]
        texts = [part.text for part in message.parts if isinstance(part, Text)]
        text = self._shield("\n\n".join(texts))
        if self._form.takes_tools:
            entries = [self._result(result) for result in results]
            if texts and entries and not self._form.takes_text_after_results:
                entries[-1]["content"] += "\n\n" + text
                return entries
            return [*entries, {"role": "user", "content": text}] if texts or not results else entries
        blocks = [
            f"<tool_response>\n{self._shield(tool_result_text(result))}\n</tool_response>"
            for result in results
        ]
        return [{"role": "user", "content": "\n".join([*blocks, text] if texts else blocks)}]

    def _result(self, result: ToolResult) -> TemplateMessage:
        return {
            "role": "tool",
            "tool_call_id": self._call_id(result.tool_use_id),
            "name": self._shield(self._tool_names.get(result.tool_use_id, "")),
            "content": self._shield(tool_result_text(result)),
        }

    def _describe(self, tool: ToolSpec) -> dict[str, Any]:
        return {
            "name": self._shield(tool.name),
            "description": self._shield(tool.description),
            "parameters": self._shield_json(tool.parameters),
        }

    def _shield_json(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._shield(value)
        if isinstance(value, dict):
            return {self._shield(key): self._shield_json(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._shield_json(inner) for inner in value]
        return value


def _place_preamble(written: list[TemplateMessage], preamble: str) -> None:
    """First of all: a client's tools are the same in every project, its system text is not."""
    if not preamble:
        return
    if written and written[0]["role"] == "system":
        written[0]["content"] = preamble + "\n\n" + written[0]["content"]
    else:
        written.insert(0, {"role": "system", "content": preamble})


def _move_system_to_user(written: list[TemplateMessage]) -> None:
    """For templates without a system role: its text opens the first user message."""
    if not written or written[0]["role"] != "system":
        return
    system = written.pop(0)["content"]
    if written and written[0]["role"] == "user":
        written[0]["content"] = f"{system}\n\n{written[0]['content']}"
    else:
        written.insert(0, {"role": "user", "content": system})


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
