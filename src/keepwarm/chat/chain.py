"""Names of growing conversations: a chain of digests, one a message, that starts at the tools.

Two requests with the same name have the same tools and the same messages, whatever dialect or
spelling they came in. Gateway and front compute them alike, so that a conversation that the front
knows need not be sent to it again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import msgspec

from keepwarm.chat.messages import Message, ToolSpec

_DIGEST_BYTES = 16
_encoder = msgspec.msgpack.Encoder(order="deterministic")


def chain_root(tools: Sequence[ToolSpec]) -> bytes:
    """The name of a conversation without messages."""
    return _digest(b"", _encoder.encode(tools))


def chain_on(chain: bytes, messages: Iterable[Message]) -> list[bytes]:
    """`chain`, and its successors after each message."""
    chains = [chain]
    for message in messages:
        chain = _digest(chain, _encoder.encode(message))
        chains.append(chain)
    return chains


def _digest(chain: bytes, encoded: bytes) -> bytes:
    return hashlib.blake2b(chain + encoded, digest_size=_DIGEST_BYTES).digest()
