"""Conversations as they stood at their last turn: what a turn that only grows need not do again.

Bounded in bytes for all tenants together; the least recently used conversation goes first. What is
kept of one is its ids and block names, 4.25 bytes a token, and the few messages at its ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from keepwarm.chat.growing_array import GrowingArray
from keepwarm.chat.memo import BoundedMemo
from keepwarm.chat.prompt_writer import PromptTurn
from keepwarm.chat.replay import RememberedAnswer
from keepwarm.core.hashing import HASH_BYTES, BlockHasher
from keepwarm.core.ids import BlockHash, TenantId, TokenIds

_ENTRY_BYTES = 4_000  # objects of one conversation besides arrays and texts
_BYTES_OF_A_CHARACTER = 2  # of the messages at its ends, which are kept as parts and as text

_Key = tuple[TenantId, bytes]


@dataclass(slots=True)
class _Naming:
    """Names of the first full blocks, once somebody asked for them: the array and how many bytes
    of it, which a thread that grows the conversation beside another must see together."""

    named: tuple[GrowingArray[np.uint8], int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownConversation:
    """All of a prompt but the invitation to answer it.

    `turn` is a window of the conversation: its head and its last messages. `text` is what the
    template makes of the window, answers as marks; `tokens` are the ids of the whole.
    """

    turn: PromptTurn
    answers: Mapping[int, RememberedAnswer]
    """By index within the window."""
    text: str
    tokens: GrowingArray[np.int32]
    num_tokens: int
    num_replayed_tokens: int
    """Of them, those of answers as they were generated."""
    has_reasoning: bool
    """Anywhere, not only within the window."""
    named_before: _Naming = field(default_factory=_Naming)
    naming: _Naming = field(default_factory=_Naming)

    @property
    def ids(self) -> TokenIds:
        return self.tokens.view(self.num_tokens)

    def block_names(self, hasher: BlockHasher, root: BlockHash, prompt: TokenIds) -> bytes:
        """Names of the full blocks of `prompt`, which begins with these ids."""
        names, num_bytes = self.named_before.named or (None, 0)
        known = b"" if names is None else names.view(num_bytes).tobytes()
        parent = BlockHash(known[-HASH_BYTES:]) if known else root
        num_known_tokens = num_bytes // HASH_BYTES * hasher.block_size
        new = hasher.extend_joined(parent, prompt[num_known_tokens:])
        kept = np.frombuffer(new, np.uint8)[: self.num_tokens // hasher.block_size * HASH_BYTES - num_bytes]
        grown = GrowingArray(kept) if names is None else names.appended(num_bytes, kept)
        self.naming.named = (grown, num_bytes + len(kept))
        return known + new


class KnownConversations:
    """By tenant and chain name. Threads may share it."""

    def __init__(self, *, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._memo: BoundedMemo[_Key, tuple[KnownConversation, _Key | None]] = BoundedMemo(
            max_bytes=max_bytes
        )

    def get(self, tenant: TenantId, chain: bytes) -> KnownConversation | None:
        entry = self._memo.get((tenant, chain))
        return None if entry is None else entry[0]

    def put(
        self, tenant: TenantId, chain: bytes, known: KnownConversation, *, grew_from: bytes | None
    ) -> None:
        """`grew_from` names the version before this one. It stays, since a client may send its turn
        again; the one before that goes."""
        older = None if grew_from is None or grew_from == chain else (tenant, grew_from)
        if older is not None and (entry := self._memo.get(older)) is not None:
            before, oldest = entry
            self._memo.put(older, (before, None), _size_beside_arrays(before))
            if oldest is not None:
                self._memo.drop(oldest)
        num_bytes = _size_beside_arrays(known) + known.tokens.num_bytes * 5 // 4  # names: a fourth of the ids
        self._memo.put((tenant, chain), (known, older), num_bytes)

    @property
    def held_bytes(self) -> int:
        return self._memo.held_bytes

    def __len__(self) -> int:
        return len(self._memo)


def _size_beside_arrays(known: KnownConversation) -> int:
    return len(known.text) * _BYTES_OF_A_CHARACTER + len(known.turn.offered.preamble) + _ENTRY_BYTES
