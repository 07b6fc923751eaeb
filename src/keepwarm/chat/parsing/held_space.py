"""White space that may turn out to be layout."""

from __future__ import annotations

WHITE_SPACE = " \t\r\n"


class HeldSpace:
    """Holds back the white space that a text ends with, until there is more of the text."""

    def __init__(self) -> None:
        self._held: list[str] = []

    def add(self, text: str) -> str:
        """The text without the white space at its end, after what was held before it."""
        words = text.rstrip(WHITE_SPACE)
        if not words:
            self._held.append(text)
            return ""
        released = self.release() + words
        self._held.append(text[len(words) :])
        return released

    def release(self) -> str:
        """What is held belongs to the text."""
        held = "".join(self._held)
        self._held.clear()
        return held

    def drop(self) -> None:
        """What is held was layout."""
        self._held.clear()
