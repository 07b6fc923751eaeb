"""The system field of a Messages body."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from keepwarm.chat.messages import Message, Text
from keepwarm.dialects.anthropic.attribution import attribution_of, names_subagent
from keepwarm.dialects.anthropic.blocks import BlockIn
from keepwarm.dialects.body import JsonBody, one_of
from keepwarm.dialects.dialect import DialectOptions
from keepwarm.dialects.errors import BadField

_SYSTEM: msgspec.json.Decoder[str | list[BlockIn]] = msgspec.json.Decoder(str | list[BlockIn])


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemField:
    """`message` is None where nothing was said."""

    message: Message | None
    num_attributions: int
    """Lines taken off."""
    is_subagent: bool


def read_system(fields: JsonBody, options: DialectOptions) -> SystemField:
    """Raises `BadField`."""
    texts = system_texts("system", fields.optional("system", _SYSTEM) or "")
    lines = [attribution_of(text) for text in texts]
    if options.strip_attribution:
        texts = [text.removeprefix(line) for text, line in zip(texts, lines, strict=True)]
    message = system_message(texts)
    return SystemField(
        message=message if message.parts else None,
        num_attributions=sum(map(bool, lines)) if options.strip_attribution else 0,
        is_subagent=any(map(names_subagent, lines)),
    )


def system_texts(field: str, content: str | list[BlockIn]) -> list[str]:
    """The texts of a system message: it holds nothing else. Raises `BadField`."""
    if isinstance(content, str):
        return [content]
    texts: list[str] = []
    for index, block in enumerate(content):
        if block.type != "text":
            raise one_of(f"{field}.{index}.type", block.type, ("text",))
        if block.text is None:
            raise BadField(f"{field}.{index}.text", "required")
        texts.append(block.text)
    return texts


def system_message(texts: list[str]) -> Message:
    """Empty texts carry nothing and are left out."""
    return Message(role="system", parts=tuple(Text(text=text) for text in texts if text))
