"""Content of OpenAI's messages and results, into the parts of a `Chat`. Chat Completions and
Responses name the same things differently; either name is read in either."""

from __future__ import annotations

from typing import Any

import msgspec

from keepwarm.chat.conversation import unread
from keepwarm.chat.messages import Image, Text
from keepwarm.dialects.body import one_of
from keepwarm.dialects.errors import BadField

_TEXT_TYPES = ("text", "input_text", "output_text", "refusal")
_IMAGE_TYPES = ("image_url", "input_image")
_UNREAD_TYPES = {"file": "file", "input_file": "file", "input_audio": "audio", "video_url": "video"}


class PartIn(msgspec.Struct):
    """One piece of content; which fields matter follows from `type`."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: Any = None
    file_id: str | None = None


class ContentReader:
    """Reads one body's content; keeps what cannot be read, by name, to be counted."""

    def __init__(self) -> None:
        self.unserved: list[str] = []

    def parts(self, field: str, content: str | list[PartIn] | None) -> tuple[Text | Image, ...]:
        """A string is one text part; empty texts carry nothing and are left out. Raises `BadField`."""
        if content is None:
            return ()
        if isinstance(content, str):
            return (Text(text=content),) if content else ()
        read = (self._part(f"{field}.{index}", part) for index, part in enumerate(content))
        return tuple(part for part in read if part != Text(text=""))

    def _part(self, field: str, part: PartIn) -> Text | Image:
        if part.type in _TEXT_TYPES:
            name = "refusal" if part.type == "refusal" else "text"
            return Text(text=needed(part.refusal if name == "refusal" else part.text, f"{field}.{name}"))
        if part.type in _IMAGE_TYPES:
            self.unserved.append(f"part:{part.type}")
            return Image(source=_source(part, f"{field}.image_url"))
        if part.type in _UNREAD_TYPES:
            self.unserved.append(f"part:{part.type}")
            return Text(text=unread(_UNREAD_TYPES[part.type]))
        raise one_of(f"{field}.type", part.type, (*_TEXT_TYPES, *_IMAGE_TYPES, *_UNREAD_TYPES))


def needed(value: str | None, field: str) -> str:
    """Raises `BadField` where a field is missing."""
    if value is None:
        raise BadField(field, "required")
    return value


def _source(part: PartIn, field: str) -> str:
    """Chat Completions nests the address, Responses does not."""
    match part.image_url:
        case str(url) | {"url": str(url)}:
            return url
        case _:
            return needed(part.file_id, field)
