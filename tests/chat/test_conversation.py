from __future__ import annotations

import pytest

from keepwarm.chat.conversation import fold, texts_of, tool_result_text
from keepwarm.chat.messages import Chat, Image, Message, Text, ToolResult, ToolSpec, ToolUse
from keepwarm.core.errors import BadRequest
from tests.chat.tiny import message


def _fold(*messages: Message) -> list[tuple[str, str]]:
    return [(m.role, m.text()) for m in fold(Chat(messages=messages))]


def test_a_string_and_its_parts_fold_alike() -> None:
    assert _fold(message("user", "ab")) == _fold(message("user", "a", "", "b")) == [("user", "ab")]


def test_system_messages_at_the_start_become_one() -> None:
    assert _fold(message("system", "a"), message("system", "b"), message("user", "c")) == [
        ("system", "a\n\nb"),
        ("user", "c"),
    ]


def test_a_later_system_message_joins_the_user_message_beside_it() -> None:
    assert _fold(message("user", "a"), message("system", "b"), message("assistant", "c")) == [
        ("user", "a\n\nb"),
        ("assistant", "c"),
    ]
    assert _fold(
        message("user", "a"), message("assistant", "b"), message("system", "c"), message("user", "d")
    ) == [
        ("user", "a"),
        ("assistant", "b"),
        ("user", "c\n\nd"),
    ]


def test_assistant_messages_in_a_row_are_one_answer_continued() -> None:
    assert _fold(message("user", "a"), message("assistant", "b"), message("assistant", "c")) == [
        ("user", "a"),
        ("assistant", "bc"),
    ]


def test_growing_conversations_fold_to_growing_conversations() -> None:
    turns = [
        [message("system", "s"), message("user", "a"), message("system", "b")],
        [message("assistant", "c"), message("system", "d")],
        [message("assistant", "e"), message("user", "f"), message("user", "g")],
    ]
    folded = [fold(Chat(messages=tuple(m for turn in turns[:n] for m in turn))) for n in (1, 2, 3)]
    assert folded[1][: len(folded[0])] == folded[0]
    assert folded[2][: len(folded[1])] == folded[1]


@pytest.mark.parametrize(
    "part",
    [Image(source="data:"), ToolResult(tool_use_id="1", parts=(Image(source="data:"),))],
)
def test_an_image_is_refused_naming_its_message(part: Image | ToolResult) -> None:
    with pytest.raises(BadRequest, match=r"messages\.1: this model takes no images"):
        fold(Chat(messages=(message("user", "a"), message("user", part))))


def test_a_failed_result_says_so_once() -> None:
    def failed(text: str) -> str:
        return tool_result_text(ToolResult(tool_use_id="1", parts=(Text(text=text),), is_error=True))

    assert failed("no such file") == "Error: no such file"
    assert failed("Error: no such file") == "Error: no such file"


def test_every_string_of_the_caller_is_seen() -> None:
    chat = Chat(
        messages=(
            message("user", "a", ToolResult(tool_use_id="b", parts=(Text(text="c"),))),
            message("assistant", ToolUse(id="d", name="e", arguments={"f": ["g", {"h": 1}]})),
        ),
        tools=(ToolSpec(name="i", description="j", parameters={"k": "l"}),),
    )
    assert sorted(texts_of(chat)) == list("abcdefghijkl")
