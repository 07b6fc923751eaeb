"""Names of things that travel between packages, kept apart by type."""

from __future__ import annotations

from typing import NewType

import numpy as np
import numpy.typing as npt

RequestId = NewType("RequestId", str)
"""One turn, unique within a replica's life."""

TenantId = NewType("TenantId", str)
"""Whose prefixes may be shared with whom."""

BlockId = NewType("BlockId", int)
"""A place in one rank's device memory: 0 <= id < num_blocks."""

BlockIds = npt.NDArray[np.int64]
"""Block ids in order, shape (num_blocks,); 64 bits, with which numpy and torch index without a cast."""

HostSlots = npt.NDArray[np.int64]
"""Places in the host memory's arena, one block each, shape (num_blocks,)."""

BlockHash = NewType("BlockHash", bytes)
"""A prefix's name: the keyed chain hash up to and including one full block, `HASH_BYTES` long."""

Slot = NewType("Slot", int)
"""A running sequence's place in the executor: 0 <= slot < max_num_seqs; reused after it ended."""

TokenIds = npt.NDArray[np.int32]
"""Token ids in order, shape (num_tokens,)."""


def token_ids(values: object) -> TokenIds:
    """Token ids as the one array type that is hashed, sent and computed."""
    return np.ascontiguousarray(values, dtype=np.int32)


def block_ids(values: object) -> BlockIds:
    """Block ids as the one array type that is kept, planned and read."""
    return np.ascontiguousarray(values, dtype=np.int64)
