"""Folding: system first, then users and assistants in turn, nothing said lost."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from keepwarm.chat.conversation import fold, one_call_a_message, texts_of, tool_result_text
from keepwarm.chat.messages import (
    Chat,
    Image,
    Message,
    Part,
    Reasoning,
    Text,
    ToolResult,
    ToolSpec,
    ToolUse,
)
from tests.chat.conversations import assistant, chat_of, system, user
from tests.chat.families import message

any_message = st.builds(
    lambda write, text: write(text), st.sampled_from([system, user, assistant]), st.text("ab \n", max_size=4)
)


@given(messages=st.lists(any_message, max_size=8))
def test_roles_alternate_after_at_most_one_system_message(messages: list[Message]) -> None:
    roles = [message.role for message in fold(chat_of(*messages))]

    assert "system" not in roles[1:]
    assert all(one != other for one, other in pairwise(roles))


@given(messages=st.lists(any_message, max_size=8))
def test_nothing_that_was_said_is_lost_or_moved(messages: list[Message]) -> None:
    folded = "".join(message.text() for message in fold(chat_of(*messages)))
    said = "".join(message.text() for message in messages)

    assert folded.replace("\n", "") == said.replace("\n", "")


@given(messages=st.lists(any_message, max_size=8))
def test_a_conversation_that_grows_by_another_speaker_keeps_its_beginning(messages: list[Message]) -> None:
    before = fold(chat_of(*messages, user("u")))

    assert fold(chat_of(*messages, user("u"), assistant("a"), system("s")))[: len(before)] == before


def test_text_is_joined_only_over_its_own_kind() -> None:
    use = ToolUse(id="1", name="n", arguments={})
    parts: tuple[Part, ...] = (Text(text="a"), Text(text=""), Text(text="b"), use, Text(text="c"))

    (message,) = fold(Chat(messages=(Message(role="assistant", parts=parts),)))

    assert message.parts == (Text(text="ab"), use, Text(text="c"))


def test_a_failure_says_so_once() -> None:
    def result(text: str, is_error: bool) -> str:
        return tool_result_text(ToolResult(tool_use_id="1", parts=(Text(text=text),), is_error=is_error))

    assert result("no net", True) == "Error: no net"
    assert result("error: no net", True) == "error: no net"
    assert result("sunny", False) == "sunny"


def test_every_string_a_caller_chose_is_looked_at() -> None:
    chat = Chat(
        messages=(
            Message(
                role="assistant",
                parts=(
                    Text(text="a"),
                    Reasoning(text="b"),
                    ToolUse(id="c", name="d", arguments={"e": ["f", {"g": "h"}], "i": 1}),
                    ToolUse(id="j", name="k", arguments="l"),
                    ToolResult(tool_use_id="m", parts=(Text(text="n"), Image(source="-"))),
                ),
            ),
        ),
        tools=(ToolSpec(name="o", description="p", parameters={"q": "r"}),),
    )

    assert "".join(sorted(texts_of(chat))) == "abcdefghijklmnopqr"


def use(number: int) -> ToolUse:
    return ToolUse(id=f"id{number}", name=f"tool{number}", arguments={})


def outcome(number: int) -> ToolResult:
    return ToolResult(tool_use_id=f"id{number}", parts=(Text(text=f"result{number}"),))


def test_messages_of_one_call_keep_their_numbers_where_a_message_takes_one() -> None:
    messages = [message("user", "go"), message("assistant", "I look.", use(1)), message("user", outcome(1))]

    assert list(one_call_a_message(messages)) == list(enumerate(messages))


def test_several_calls_become_messages_with_their_results_whatever_order_those_came_in() -> None:
    messages = [
        message("user", "go"),
        message("assistant", "I look.", use(1), use(2)),
        message("user", outcome(2), outcome(1), outcome(9), "thanks"),
        message("assistant", "Done."),
    ]

    assert list(one_call_a_message(messages)) == [
        (0, messages[0]),
        (None, message("assistant", "I look.", use(1))),
        (None, message("user", outcome(1))),
        (None, message("assistant", use(2))),
        (None, message("user", outcome(2), outcome(9), "thanks")),
        (3, messages[3]),
    ]


def test_calls_that_nothing_answers_are_kept() -> None:
    messages = [message("user", "go"), message("assistant", use(1), use(2))]

    assert [split for _, split in one_call_a_message(messages)] == [
        messages[0],
        message("assistant", use(1)),
        message("assistant", use(2)),
    ]
