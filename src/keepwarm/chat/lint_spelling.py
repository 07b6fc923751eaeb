"""What a model would have written for a made-up answer, control tokens spelled out."""

from __future__ import annotations

import json
from collections.abc import Sequence

from keepwarm.chat.messages import Message, Part, Reasoning, Text, ToolUse
from keepwarm.chat.parsing.reasoning import ReasoningMarks, reasoning_for
from keepwarm.chat.prompt_writer import Program
from keepwarm.chat.template_messages import MessageWriter
from keepwarm.chat.tokenizer import Tokenizer
from keepwarm.core.errors import BadRequest

_ASKED = Message(role="user", parts=(Text(text="qqaskedqq"),))


class AnswerSpelling:
    """One template's: calls as it writes them in a history, thoughts between its family's marks."""

    def __init__(self, tokenizer: Tokenizer, program: Program) -> None:
        self._program = program
        self._marks: ReasoningMarks = reasoning_for("\n".join(tokenizer.chat_templates.values()))
        self._opened = self._marks.opened_by(program.place.invitation)
        self._stops = tokenizer.stop_texts()

    def of(self, thought: str, said: Sequence[Part]) -> str:
        """The whole answer; it does not think where `thought` is empty."""
        spoken = "".join(part.text if isinstance(part, Text) else _plainly(part) for part in said)
        calls = [part for part in said if isinstance(part, ToolUse)]
        shown = self._as_shown((Reasoning(text=thought), *said) if thought else tuple(said))
        if not all(call.name in shown for call in calls):
            shown = ""
        if thought and thought not in shown:
            return self._thought(thought) + (self._as_shown(said) if calls and shown else spoken)
        if calls and shown:
            return ("" if thought or self._marks.close in shown else self._thought("")) + shown
        return (_before(spoken.strip(), shown) if thought else self._thought("")) + spoken

    def _thought(self, thought: str) -> str:
        marks = self._marks
        if not thought:
            return f"{marks.close}\n\n" if self._opened else ""
        return f"{'' if self._opened else marks.open}\n{thought}\n{marks.close}\n\n"

    def _as_shown(self, parts: Sequence[Part]) -> str:
        """As the template writes an answer between its header and its end; empty where it cannot be told."""
        try:
            before = self._text(_ASKED)
            whole = self._text(_ASKED, Message(role="assistant", parts=tuple(parts)))
        except BadRequest:
            return ""
        if not whole.startswith(before):
            return ""
        shown, place = whole[len(before) :], self._program.place
        header = next((head for head in (place.invitation, place.header) if shown.startswith(head)), "")
        shown = shown[len(header) :]
        return shown[: min((shown.find(stop) for stop in self._stops if stop in shown), default=len(shown))]

    def _text(self, *messages: Message) -> str:
        writer = MessageWriter(self._program.form, shield=lambda text: text, places={})
        written = writer.messages(messages, writer.offer(()))
        return self._program.template.render(written, tools=None, add_generation_prompt=False)


def _before(part: str, text: str) -> str:
    return text.partition(part)[0]


def _plainly(part: Part) -> str:
    if not isinstance(part, ToolUse):
        return ""
    return f"\n<tool_call>\n{json.dumps({'name': part.name, 'arguments': part.arguments})}\n</tool_call>"
