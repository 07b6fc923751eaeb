"""What one tenant's conversation costs and says does not depend on what another's was."""

from __future__ import annotations

import pytest

from keepwarm.chat.messages import Chat
from keepwarm.chat.render import ChatRenderer, RenderedPrompt
from keepwarm.chat.tokenizer import Tokenizer
from keepwarm.core.hashing import BlockHasher, BlockNames, root_hash
from keepwarm.core.ids import TenantId
from tests.chat.conversations import assistant, chat_of, system, user

ADA, BOB = TenantId("ada"), TenantId("bob")
KEY = bytes(32)
HASHER = BlockHasher(key=KEY, block_size=4)
CHAT = chat_of(system("be kind"), user("tell me"), assistant("hello"), user("the launch is on the ninth"))


def num_encoded(
    renderer: ChatRenderer,
    tokenizer: Tokenizer,
    tenant: TenantId,
    chat: Chat,
    monkeypatch: pytest.MonkeyPatch,
) -> int:
    """Pieces of text that this prompt sends to the tokenizer: what its time goes into."""
    encoded: list[str] = []
    encode = tokenizer.encode

    def counted(text: str, *, after_control_token: bool) -> object:
        encoded.append(text)
        return encode(text, after_control_token=after_control_token)

    with monkeypatch.context() as patched:
        patched.setattr(tokenizer, "encode", counted)
        renderer.render(tenant, chat)
    return len(encoded)


def test_a_prompt_that_another_tenant_sent_before_takes_as_much_tokenising(
    chatml: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    renderer = ChatRenderer(chatml, conversation_memo_bytes=0)
    cold, warm, theirs = [
        num_encoded(renderer, chatml, tenant, CHAT, monkeypatch) for tenant in (ADA, ADA, BOB)
    ]
    assert warm < cold
    assert theirs == cold


def test_a_conversation_that_another_tenant_grows_is_rendered_whole(
    chatml: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    renderer = ChatRenderer(chatml)
    grown = chat_of(*CHAT.messages, assistant("noted"), user("and then?"))
    renderer.render(ADA, CHAT)
    fresh = num_encoded(ChatRenderer(chatml), chatml, BOB, grown, monkeypatch)
    theirs = num_encoded(renderer, chatml, BOB, grown, monkeypatch)
    assert num_encoded(renderer, chatml, ADA, grown, monkeypatch) < fresh
    assert theirs == fresh


def test_the_same_prompt_has_the_same_ids_and_no_name_in_common(chatml: Tokenizer) -> None:
    renderer = ChatRenderer(chatml)

    def names(tenant: TenantId, prompt: RenderedPrompt) -> set[bytes]:
        return set(BlockNames(prompt.block_names(HASHER, root_hash(KEY, tenant)))[:])

    grown = chat_of(*CHAT.messages, assistant("noted"), user("and then?"))
    for chat in (CHAT, grown):  # the second time from what is known of the first
        mine, theirs = renderer.render(ADA, chat), renderer.render(BOB, chat)
        assert mine.tokens.tolist() == theirs.tokens.tolist()
        assert len(names(ADA, mine)) == len(mine.tokens) // 4
        assert not names(ADA, mine) & names(BOB, theirs)
