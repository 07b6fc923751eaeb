"""Messages in one word."""

from __future__ import annotations

from keepwarm.chat.messages import Chat, Message, Text


def system(text: str) -> Message:
    return Message(role="system", parts=(Text(text=text),))


def user(text: str) -> Message:
    return Message(role="user", parts=(Text(text=text),))


def assistant(text: str) -> Message:
    return Message(role="assistant", parts=(Text(text=text),))


def chat_of(*messages: Message) -> Chat:
    return Chat(messages=messages)
