"""No markup at all."""

from __future__ import annotations

from keepwarm.chat.events import Delta, TextDelta


class PlainParser:
    """An `AnswerParser` to which everything is text."""

    num_malformed = 0

    def feed(self, text: str) -> list[Delta]:
        return [TextDelta(text=text)] if text else []

    def finish(self) -> list[Delta]:
        return []
