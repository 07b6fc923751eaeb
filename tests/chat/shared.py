"""What property tests share: a renderer is tried out with its template once, not for every example.

Each example is a tenant of its own, for whom nothing is remembered yet.
"""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer as Backend

from keepwarm.chat.render import ChatRenderer
from keepwarm.chat.template import ChatTemplate
from keepwarm.chat.tokenizer import Tokenizer
from keepwarm.core.ids import TenantId

_numbers = itertools.count()


def new_tenant() -> TenantId:
    return TenantId(f"tenant {next(_numbers)}")


@cache
def renderer_of(tokenizer: Tokenizer) -> ChatRenderer:
    return ChatRenderer(tokenizer)


@cache
def renderer_of_whole(tokenizer: Tokenizer) -> ChatRenderer:
    """Lets no conversation grow."""
    return ChatRenderer(tokenizer, conversation_memo_bytes=0)


@cache
def template_of(tokenizer: Tokenizer) -> ChatTemplate:
    """The template alone."""
    return ChatTemplate(
        tokenizer.chat_template or "",
        variables={"bos_token": tokenizer.bos_token, "eos_token": tokenizer.eos_token},
    )


@cache
def backend_of(tokenizer: Tokenizer) -> Backend:
    """The library's own, untouched."""
    return Backend.from_file(str(Path(tokenizer.origin) / "tokenizer.json"))
