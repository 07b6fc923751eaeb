"""Chain hashes that name prefixes: what a block holds and everything before it.

Owns the naming only; which block carries a name is `cache`'s business.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import overload

from blake3 import blake3

from keepwarm.core.ids import BlockHash, TenantId, TokenIds

HASH_BYTES = 16
"""128 bits of a keyed hash: nobody without the key can search for a collision."""

KEY_BYTES = 32


def root_hash(key: bytes, tenant: TenantId, *extras: bytes) -> BlockHash:
    """The parent of a tenant's first blocks, so that no tenant can name another's prefixes.

    `extras` are whatever else changes the KV of every token (model, dtype, adapter).
    """
    parts = b"".join(len(part).to_bytes(4, "little") + part for part in (tenant.encode(), *extras))
    return BlockHash(blake3(b"keepwarm root" + parts, key=key).digest(HASH_BYTES))


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockHasher:
    """h_i = H(key; h_{i-1}, tokens of block i). Full blocks only."""

    key: bytes
    block_size: int

    def extend(self, parent: BlockHash, tokens: TokenIds) -> list[BlockHash]:
        """Hashes of the full blocks of `tokens`, the first one a child of `parent`.

        `tokens` starts at a block's first token; a last part shorter than a block has no name.
        """
        num_blocks = len(tokens) // self.block_size
        raw = memoryview(tokens.tobytes())
        step = self.block_size * 4
        hashes: list[BlockHash] = []
        key = self.key
        for start in range(0, num_blocks * step, step):
            parent = BlockHash(blake3(parent + raw[start : start + step], key=key).digest(HASH_BYTES))
            hashes.append(parent)
        return hashes

    def extend_joined(self, parent: BlockHash, tokens: TokenIds) -> bytes:
        """`extend`, end to end."""
        return b"".join(self.extend(parent, tokens))


def join_hashes(hashes: Sequence[BlockHash]) -> bytes:
    """Hashes end to end, the form in which they travel."""
    return b"".join(hashes)


class BlockNames(Sequence[BlockHash]):
    """Names in order, over their joined bytes; a name is cut out only when it is asked for.

    The inverse of `join_hashes`. A slice is a list, so it costs what it holds.
    """

    __slots__ = ("_added", "_joined", "_num_joined")

    def __init__(self, joined: bytes) -> None:
        self._joined = joined
        self._num_joined = len(joined) // HASH_BYTES
        self._added: list[BlockHash] = []

    def __len__(self) -> int:
        return self._num_joined + len(self._added)

    @overload
    def __getitem__(self, index: int) -> BlockHash: ...
    @overload
    def __getitem__(self, index: slice) -> list[BlockHash]: ...
    def __getitem__(self, index: int | slice) -> BlockHash | list[BlockHash]:
        if isinstance(index, slice):
            return self._cut(*index.indices(len(self)))
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexError(index)
        if at >= self._num_joined:
            return self._added[at - self._num_joined]
        return BlockHash(self._joined[at * HASH_BYTES : (at + 1) * HASH_BYTES])

    def _cut(self, start: int, stop: int, step: int) -> list[BlockHash]:
        if step != 1:
            return [self[at] for at in range(start, stop, step)]
        joined, num_joined = self._joined, self._num_joined
        bounds = range(start * HASH_BYTES, min(stop, num_joined) * HASH_BYTES, HASH_BYTES)
        names = [BlockHash(joined[at : at + HASH_BYTES]) for at in bounds]
        return names + self._added[max(0, start - num_joined) : max(0, stop - num_joined)]

    def extend(self, names: Iterable[BlockHash]) -> None:
        """Append names; those that are there are not touched."""
        self._added.extend(names)
