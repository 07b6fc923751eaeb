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
    """Names of the first full blocks, and how many bytes they are, once somebody asked for them.

    Array and length in one value: another thread may read it just when it is set.
    """

    names: tuple[GrowingArray[np.uint8], int] | None = None


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

    @property
    def last_naming(self) -> _Naming:
        """Of this version, or of the one before it where nobody asked for this one's: a count."""
        return self.naming if self.naming.names is not None else self.named_before

    def block_names(self, hasher: BlockHasher, root: BlockHash, prompt: TokenIds) -> bytes:
        """Names of the full blocks of `prompt`, which begins with these ids."""
        before = self.named_before.names
        known = b"" if before is None else before[0].view(before[1]).tobytes()
        parent = BlockHash(known[-HASH_BYTES:]) if known else root
        num_known_tokens = len(known) // HASH_BYTES * hasher.block_size
        new = hasher.extend_joined(parent, prompt[num_known_tokens:])
        num_bytes = self.num_tokens // hasher.block_size * HASH_BYTES
        kept = np.frombuffer(new, np.uint8)[: num_bytes - len(known)]
        array = GrowingArray(kept) if before is None else before[0].appended(len(known), kept)
        self.naming.names = (array, num_bytes)
        return known + new


class KnownConversations:
    """By tenant and name: the program that writes them, and the chain. Threads may share it."""

    def __init__(self, *, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._memo: BoundedMemo[_Key, tuple[KnownConversation, _Key | None]] = BoundedMemo(
            max_bytes=max_bytes
        )

    def get(self, tenant: TenantId, name: bytes) -> KnownConversation | None:
        """Whoever is asked for counts in full from now on, though a newer version may share its arrays:
        it may outlive that one."""
        entry = self._memo.get((tenant, name))
        if entry is None:
            return None
        self._memo.put((tenant, name), entry, _size(entry[0]))
        return entry[0]

    def put(
        self, tenant: TenantId, name: bytes, known: KnownConversation, *, grew_from: bytes | None
    ) -> None:
        """`grew_from` names the version before this one. It stays, since a client may send its turn
        again; the one before that goes."""
        older = None if grew_from is None or grew_from == name else (tenant, grew_from)
        if older is not None and (entry := self._memo.get(older)) is not None:
            before, oldest = entry
            self._memo.put(older, (before, None), _size_beside_arrays(before))
            if oldest is not None:
                self._memo.drop(oldest)
        self._memo.put((tenant, name), (known, older), _size(known))

    @property
    def held_bytes(self) -> int:
        return self._memo.held_bytes

    def __len__(self) -> int:
        return len(self._memo)


def _size(known: KnownConversation) -> int:
    return _size_beside_arrays(known) + known.tokens.num_bytes * 5 // 4  # names: a fourth of the ids


def _size_beside_arrays(known: KnownConversation) -> int:
    """An answer at the ends is no part of the text: its ids, and about as many bytes of its words."""
    num_characters = len(known.text) + len(known.turn.offered.preamble)
    answers_bytes = sum(2 * answer.tokens.nbytes for answer in known.answers.values())
    return num_characters * _BYTES_OF_A_CHARACTER + answers_bytes + _ENTRY_BYTES
