"""A conversation as templates can take it.

Rules, all of which leave the earlier part of a growing conversation as it was:
- system messages at the start become one, joined by a blank line;
- a later system message becomes a user message where it stands;
- neighbours of one role become one message: user texts joined by a blank line, assistant texts
  end to end (an answer that was continued);
- text parts of one message stand end to end;
- an image is told of in words, at its place, since the models served here read text;
- tool results come before the text of their message, since they answer the message before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from keepwarm.chat.messages import Chat, Image, Message, Part, Reasoning, Text, ToolResult, ToolUse
from keepwarm.core.errors import BadRequest

_SEPARATORS = {"system": "\n\n", "user": "\n\n", "assistant": ""}


def fold(chat: Chat) -> tuple[Message, ...]:
    """At most one system message, first; then users and assistants in turn, text parts joined.

    Raises `BadRequest` where a conversation begins with an image.
    """
    _refuse_first_image(chat.messages)
    folded: list[Message] = []
    for message in chat.messages:
        role = message.role
        if role == "system" and folded and folded[-1].role != "system":
            role = "user"
        parts = tuple(_join_texts(map(_without_image, message.parts), ""))
        if folded and folded[-1].role == role:
            parts = tuple(_join_texts((*folded.pop().parts, *parts), _SEPARATORS[role]))
        folded.append(Message(role=role, parts=parts))
    return tuple(folded)


def _refuse_first_image(messages: Sequence[Message]) -> None:
    """Said plainly while nothing is lost by it. Later on, the image would come again with every turn
    of its session, and an error would end that."""
    if any(message.role == "assistant" for message in messages):
        return
    for number, message in enumerate(messages):
        if any(isinstance(part, Image) for part in message.parts):
            raise BadRequest(f"messages.{number}: this model takes no images")


def _without_image(part: Part) -> Part:
    match part:
        case Image():
            return Text(text=unread("image"))
        case ToolResult() if any(isinstance(piece, Image) for piece in part.parts):
            texts = tuple(
                Text(text=unread("image")) if isinstance(piece, Image) else piece for piece in part.parts
            )
            return ToolResult(tool_use_id=part.tool_use_id, parts=texts, is_error=part.is_error)
        case _:
            return part


def unread(what: str) -> str:
    """The words in place of content that a model of text cannot read; the same ones every turn."""
    return f"[{what} left out: this model reads text only]"


def _join_texts(parts: Iterable[Part], separator: str) -> Iterator[Part]:
    """Neighbouring texts as one; empty ones left out."""
    waiting: Text | None = None
    for part in parts:
        if isinstance(part, Text):
            if not part.text:
                continue
            waiting = part if waiting is None else Text(text=waiting.text + separator + part.text)
            continue
        if waiting is not None:
            yield waiting
            waiting = None
        yield part
    if waiting is not None:
        yield waiting


def one_call_a_message(messages: Sequence[Message]) -> Iterator[tuple[int | None, Message]]:
    """For templates that write one call a message: several calls of one message become as many
    messages, each followed by its result. With each message its index, None where it was split."""
    waiting: list[Message] = []
    for index, message in enumerate(messages):
        calls = [part for part in message.parts if isinstance(part, ToolUse)]
        if waiting and message.role == "user":
            yield from ((None, piece) for piece in _between_results(waiting, message))
            waiting = []
        elif len(calls) > 1:
            waiting = _split_at_calls(message)
        else:
            yield index, message
    yield from ((None, piece) for piece in waiting)


def _split_at_calls(message: Message) -> list[Message]:
    """Text and reasoning go with the first call."""
    rest = tuple(part for part in message.parts if not isinstance(part, ToolUse))
    calls = [part for part in message.parts if isinstance(part, ToolUse)]
    first, *others = ((*rest, calls[0]), *((call,) for call in calls[1:]))
    return [Message(role="assistant", parts=parts) for parts in (first, *others)]


def _between_results(calls: Sequence[Message], answer: Message) -> Iterator[Message]:
    """Each call with its result; whatever else the user says goes with the last."""
    ids = [part.id for call in calls for part in call.parts if isinstance(part, ToolUse)]
    for call, call_id in zip(calls, ids, strict=True):
        yield call
        is_last = call is calls[-1]
        parts = tuple(part for part in answer.parts if _goes_with(part, call_id, ids, is_last))
        if parts:
            yield Message(role="user", parts=parts)


def _goes_with(part: Part, call_id: str, ids: Sequence[str], is_last: bool) -> bool:
    if isinstance(part, ToolResult) and part.tool_use_id in ids:
        return part.tool_use_id == call_id
    return is_last


def tool_result_text(result: ToolResult) -> str:
    """What the model reads of a result; a failure says so, if only by us."""
    text = "".join(part.text for part in result.parts if isinstance(part, Text))
    if result.is_error and not text.lower().startswith("error"):
        return f"Error: {text}"
    return text


def texts_of(chat: Chat) -> Iterator[str]:
    """Every string of the conversation that a caller chose."""
    for message in chat.messages:
        for part in message.parts:
            yield from _texts_of_part(part)
    for tool in chat.tools:
        yield tool.name
        yield tool.description
        yield from _strings_in(tool.parameters)


def _texts_of_part(part: Part) -> Iterator[str]:
    match part:
        case Text() | Reasoning():
            yield part.text
        case ToolUse():
            yield from (part.id, part.name)
            yield from _strings_in(part.arguments)
        case ToolResult():
            yield part.tool_use_id
            yield from (piece.text for piece in part.parts if isinstance(piece, Text))
        case Image():
            pass


def _strings_in(value: Any) -> Iterator[str]:
    """The strings of a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _strings_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings_in(inner)
