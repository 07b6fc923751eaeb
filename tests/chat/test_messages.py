"""Messages in the plain."""

from __future__ import annotations

import msgspec
import pytest

from keepwarm.chat.messages import Chat, Image, Message, Reasoning, Text, ToolUse


def test_the_text_of_a_message_is_its_text_parts_end_to_end() -> None:
    message = Message(
        role="assistant",
        parts=(
            Text(text="a"),
            Reasoning(text="no"),
            ToolUse(id="1", name="n", arguments={}),
            Image(source="no"),
            Text(text=" b"),
        ),
    )

    assert message.text() == "a b"


def test_an_unknown_role_is_no_message() -> None:
    with pytest.raises(msgspec.ValidationError, match="role"):
        msgspec.convert({"messages": [{"role": "tool", "parts": []}]}, Chat)


def test_messages_do_not_change() -> None:
    with pytest.raises(AttributeError):
        Text(text="a").text = "b"  # type: ignore[misc]
