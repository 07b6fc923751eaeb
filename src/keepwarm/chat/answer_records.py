"""Remembered answers as bytes, so that something that outlives this process can keep them.

Owns the form. A record of another form or of another model is no answer; who keeps records, and how
many, it does not know.
"""

from __future__ import annotations

import hashlib

import msgspec
import numpy as np

from keepwarm.chat.replay import RememberedAnswer
from keepwarm.core.ids import TenantId, token_ids

_VERSION = 1
_TOKEN_BYTES = 4
_DIGEST_BYTES = 16


class _Record(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    version: int
    model: bytes
    tenant: str
    key: bytes
    header: str
    tokens: bytes
    """int32, little-endian."""
    has_reasoning: bool


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Record).decode


class AnswerRecords:
    """The records of one model."""

    def __init__(self, model: bytes) -> None:
        """`model` changes when its token ids may mean something else."""
        self._model = model

    def encode(self, tenant: TenantId, key: bytes, answer: RememberedAnswer) -> tuple[bytes, bytes]:
        """A name, which the same answer in the same place of the same tenant has again, and the record."""
        record = _Record(
            version=_VERSION,
            model=self._model,
            tenant=tenant,
            key=key,
            header=answer.header,
            tokens=answer.tokens.astype("<i4", copy=False).tobytes(),
            has_reasoning=answer.has_reasoning,
        )
        return self._name(tenant, key), _encode(record)

    def decode(self, record: bytes) -> tuple[TenantId, bytes, RememberedAnswer] | None:
        """What was encoded; None where it is not of this form or model."""
        try:
            read = _decode(record)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        if read.version != _VERSION or read.model != self._model or len(read.tokens) % _TOKEN_BYTES:
            return None
        answer = RememberedAnswer(
            header=read.header,
            tokens=token_ids(np.frombuffer(read.tokens, dtype="<i4")),
            has_reasoning=read.has_reasoning,
        )
        return TenantId(read.tenant), read.key, answer

    def _name(self, tenant: TenantId, key: bytes) -> bytes:
        parts = (self._model, tenant.encode(errors="surrogatepass"), key)
        joined = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
        return hashlib.blake2b(joined, digest_size=_DIGEST_BYTES).digest()
