"""The ids a model generated, kept to be read again when the client sends the answer back.

An answer is known by its tenant, by all that came before it, and by what it says: the text
without white space around it and the tool calls as canonical JSON. What the model thought and the
ids of calls do not count, since clients drop or rename them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from keepwarm.chat.memo import BoundedMemo
from keepwarm.chat.messages import Message, Part, Text, ToolResult, ToolUse
from keepwarm.core.ids import TenantId, TokenIds

_DIGEST_BYTES = 16
_ENTRY_BYTES = 400  # key, header and bookkeeping, besides the ids
_MAX_TENANTS = 1024
DEFAULT_REPLAY_BYTES = 1 << 30
DEFAULT_REPLAY_BYTES_PER_TENANT = 64 << 20

_encoder = msgspec.msgpack.Encoder(order="deterministic")


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberedAnswer:
    """`header` is the template's text between the message before and the first of `tokens`."""

    header: str
    tokens: TokenIds
    has_reasoning: bool = False
    """Some of the tokens are thoughts, which a template may drop from old turns."""


class ReplayMemo:
    """Each tenant has a bounded memory of its own, and all together have one too. Where that is
    full, whoever holds the most gives way, so that none can push out another's fair share."""

    def __init__(
        self,
        *,
        max_bytes: int = DEFAULT_REPLAY_BYTES,
        max_bytes_per_tenant: int = DEFAULT_REPLAY_BYTES_PER_TENANT,
        on_new: Callable[[TenantId, bytes, RememberedAnswer], None] | None = None,
    ) -> None:
        """`on_new` is called by `put` with what it was given, so that it can be kept elsewhere too."""
        self._on_new = on_new
        self._max_bytes = max_bytes
        self._max_bytes_per_tenant = max_bytes_per_tenant
        self._tenants: BoundedMemo[TenantId, BoundedMemo[bytes, RememberedAnswer]] = BoundedMemo(
            max_bytes=_MAX_TENANTS
        )

    def get(self, tenant: TenantId, key: bytes) -> RememberedAnswer | None:
        memo = self._tenants.get(tenant)
        return None if memo is None else memo.get(key)

    def put(self, tenant: TenantId, key: bytes, answer: RememberedAnswer) -> None:
        """Remember an answer that was just generated."""
        self.restore(tenant, key, answer)
        if self._on_new is not None:
            self._on_new(tenant, key, answer)

    def restore(self, tenant: TenantId, key: bytes, answer: RememberedAnswer) -> None:
        """Remember one of an earlier process."""
        memo = self._tenants.get(tenant)
        if memo is None:
            memo = BoundedMemo(max_bytes=self._max_bytes_per_tenant)
            self._tenants.put(tenant, memo, 1)
        memo.put(key, answer, answer.tokens.nbytes + len(answer.header) + _ENTRY_BYTES)
        self._make_room()

    def all(self) -> Iterator[tuple[TenantId, bytes, RememberedAnswer]]:
        """All of them, tenant by tenant, the least recently used first."""
        for tenant, memo in self._tenants.items():
            for key, answer in memo.items():
                yield tenant, key, answer

    @property
    def held_bytes(self) -> int:
        return sum(memo.held_bytes for memo in self._tenants.values())

    def _make_room(self) -> None:
        while self.held_bytes > self._max_bytes:
            max(self._tenants.values(), key=lambda memo: memo.held_bytes).drop_oldest()


def keys_before(messages: Sequence[Message], first: bytes = b"") -> list[bytes]:
    """A name for what stands before each message, and as the last one for the whole; `first` names
    what stands before them all."""
    keys = [first]
    for message in messages:
        keys.append(_digest(keys[-1], [message.role, _canonical(message.role, message.parts)]))
    return keys


def answer_key(before: bytes, parts: Sequence[Part]) -> bytes | None:
    """The name of an answer in its place; None when it says nothing."""
    canonical = _canonical("assistant", parts)
    return _digest(before, canonical) if any(canonical) else None


def _digest(before: bytes, value: Any) -> bytes:
    return hashlib.blake2b(before + _encoder.encode(value), digest_size=_DIGEST_BYTES).digest()


def _canonical(role: str, parts: Sequence[Part]) -> list[Any]:
    text = "".join(part.text for part in parts if isinstance(part, Text))
    uses = [[part.name, _canonical_json(part.arguments)] for part in parts if isinstance(part, ToolUse)]
    if role == "assistant":
        return [text.strip(), uses]
    results = [[part.parts, part.is_error] for part in parts if isinstance(part, ToolResult)]
    return [text, uses, results]


def _canonical_json(value: Any) -> Any:
    """Numbers as doubles, which is all that many a client keeps of them: 1.0 comes back as 1."""
    if isinstance(value, dict):
        return {key: _canonical_json(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_canonical_json(inner) for inner in value]
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return str(value)
    return value
