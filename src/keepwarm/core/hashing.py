"""Chain hashes that name prefixes: what a block holds and everything before it.

Owns the naming only; which block carries a name is `cache`'s business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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


def split_hashes(joined: bytes) -> list[BlockHash]:
    """The inverse of `join_hashes`."""
    return [BlockHash(joined[i : i + HASH_BYTES]) for i in range(0, len(joined), HASH_BYTES)]
