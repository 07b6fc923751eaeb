"""Successive requests of one session extend each other: message by message, and token by token in
the embedded model's own template. What breaks this costs a cold read of the whole conversation."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from keepwarm.chat.messages import Chat
from keepwarm.chat.render import ChatRenderer
from keepwarm.chat.tokenizer import Tokenizer, load_tokenizer
from keepwarm.cli.embedded_model import find_embedded_model
from keepwarm.core.errors import BadModel
from keepwarm.core.ids import TenantId
from keepwarm.dialects import anthropic, openai_chat, openai_responses
from keepwarm.dialects.dialect import Dialect, DialectOptions

SAMPLES = Path(__file__).parents[1] / "fixtures" / "client_samples"
CLAUDE_CODE = ["cc_1_first_request", "cc_2_second_request", "cc_3_third_request", "cc_4_fourth_request"]
SESSIONS: list[tuple[Dialect, list[str]]] = [
    (anthropic, CLAUDE_CODE),
    (openai_chat, ["opencode_chat_1", "opencode_chat_2"]),
]
EACH_SESSION = pytest.mark.parametrize(("dialect", "names"), SESSIONS)


def body_of(name: str) -> dict[str, Any]:
    body: dict[str, Any] = json.loads((SAMPLES / f"{name}.json").read_text())["body"]
    return body


def chat_of(dialect: Dialect, body: dict[str, Any], **options: bool) -> Chat:
    return dialect.parse_turn(json.dumps(body).encode(), DialectOptions(**options)).chat


@pytest.fixture(scope="module")
def embedded() -> Tokenizer:
    try:
        return load_tokenizer(str(find_embedded_model()))
    except BadModel as error:
        pytest.skip(str(error))


def assert_extends(tokenizer: Tokenizer, chats: list[Chat]) -> None:
    """Every prompt begins with the one before, but for that one's invitation to answer."""
    renderer = ChatRenderer(tokenizer)
    prompts = [renderer.render(TenantId("t"), chat).tokens.tolist() for chat in chats]
    invitation = tokenizer.encode_template_text("<|im_start|>assistant\n").tolist()
    for before, after in pairwise(prompts):
        assert before[-len(invitation) :] == invitation
        assert after[: len(before)] == before


@EACH_SESSION
def test_each_request_has_the_messages_of_the_one_before(dialect: Dialect, names: list[str]) -> None:
    chats = [chat_of(dialect, body_of(name)) for name in names]
    for before, after in pairwise(chats):
        assert after.messages[: len(before.messages)] == before.messages
        assert after.tools == before.tools


@EACH_SESSION
def test_each_prompt_begins_with_the_one_before(
    dialect: Dialect, names: list[str], embedded: Tokenizer
) -> None:
    assert_extends(embedded, [chat_of(dialect, body_of(name)) for name in names])


def test_a_compaction_extends_the_session_it_compacts(embedded: Tokenizer) -> None:
    """The same prefix, and one more text in the newest message."""
    compaction = body_of("cc_compaction_request")
    *messages, last = compaction["messages"]
    before = compaction | {"messages": [*messages, last | {"content": last["content"][:1]}]}
    older = compaction | {"messages": messages[:-1]}
    chats = [chat_of(anthropic, body) for body in (older, before, compaction)]
    renderer = ChatRenderer(embedded)
    first, second, third = (renderer.render(TenantId("t"), chat).tokens.tolist() for chat in chats)
    assert second[: len(first)] == first
    shared = next(i for i, (a, b) in enumerate(zip(second, third, strict=False)) if a != b)
    assert len(second) - shared < 12  # what closes the message and invites an answer


def test_codex_extends_its_session_through_calls_and_thoughts(embedded: Tokenizer) -> None:
    first = body_of("codex_responses_1")
    answer = [
        {"type": "reasoning", "summary": [], "encrypted_content": "keepwarm1:SG0="},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "name": "exec_command", "arguments": '{"cmd":"ls"}', "call_id": "c1"},
    ]
    result = {"type": "function_call_output", "call_id": "c1", "output": "a.txt"}
    second = first | {"input": [*first["input"], *answer, result]}
    third = second | {
        "input": [
            *second["input"],
            {"role": "assistant", "content": "One."},
            {"role": "user", "content": "Go on"},
        ]
    }
    assert_extends(embedded, [chat_of(openai_responses, body) for body in (first, second, third)])


# What changes from request to request and means nothing


def test_the_attribution_line_of_two_sessions_is_all_that_differs_in_their_system() -> None:
    first, other = body_of("cc_1_first_request"), body_of("cc_compaction_request")
    assert first["system"][0] != other["system"][0]
    assert chat_of(anthropic, first).messages[0] == chat_of(anthropic, other).messages[0]
    kept = [chat_of(anthropic, body, strip_attribution=False).messages[0] for body in (first, other)]
    assert kept[0] != kept[1]


def test_moved_cache_marks_and_text_as_string_or_list_change_nothing() -> None:
    body = body_of("cc_4_fourth_request")
    plain = json.loads(json.dumps(body))
    for message in plain["messages"]:
        if isinstance(message["content"], list):
            for block in message["content"]:
                block.pop("cache_control", None)
            blocks = message["content"]
            if len(blocks) == 1 and blocks[0]["type"] == "text":
                message["content"] = blocks[0]["text"]
    plain["system"] = [{"type": "text", "text": block["text"]} for block in body["system"]]
    assert chat_of(anthropic, plain) == chat_of(anthropic, body)


def test_who_asks_never_stands_in_the_prompt() -> None:
    body = body_of("cc_1_first_request")
    other = body | {"metadata": {"user_id": '{"device_id": "1", "session_id": "2"}'}}
    assert chat_of(anthropic, other) == chat_of(anthropic, body)


def test_deferred_tools_that_appear_later_leave_the_head_as_it_was() -> None:
    body = body_of("cc_1_first_request")
    late = {"name": "AaaLate", "description": "x", "input_schema": {"type": "object"}, "defer_loading": True}
    assert chat_of(anthropic, body | {"tools": [late, *body["tools"]]}) == chat_of(anthropic, body)


def test_a_count_is_of_the_very_conversation_that_is_answered() -> None:
    for name in [*CLAUDE_CODE, "cc_subagent_first", "cc_image_result", "opencode_anthropic_1"]:
        raw = json.dumps(body_of(name)).encode()
        assert anthropic.parse_count(raw)[1] == anthropic.parse_turn(raw).chat
