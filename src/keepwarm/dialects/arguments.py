"""A call's arguments, as clients send them back. Whatever a model once wrote is kept: a call that
it botched stays in its client's history, and an error would come again with every later turn."""

from __future__ import annotations

from typing import Any

import msgspec


def read_arguments(sent: Any) -> dict[str, Any] | str:
    """A decoded JSON value. What is no object stays as its text, for the model to see."""
    match sent:
        case None:
            return {}
        case dict():
            return _portable(sent)
        case str():
            return sent
        case _:
            return msgspec.json.encode(sent).decode()


def parse_arguments(sent: Any) -> dict[str, Any] | str:
    """Arguments that come as JSON text."""
    if not isinstance(sent, str):
        return read_arguments(sent)
    try:
        return _portable(msgspec.json.decode(sent or "{}", type=dict[str, Any]))
    except (msgspec.DecodeError, RecursionError):
        return sent


def _portable(arguments: dict[str, Any]) -> dict[str, Any] | str:
    """As they travel between processes. Integers beyond 64 bits do not: such arguments become text."""
    try:
        msgspec.msgpack.encode(arguments)
    except OverflowError:
        return msgspec.json.encode(arguments).decode()
    return arguments
