"""A rank's side of L1: short questions to `keepwarm hostcache`, and its arena mapped here.

Used by the engine thread alone. Whatever goes wrong with the connection is `HostTierLost`, now and
for every later question.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence

import msgspec
import numpy as np

from keepwarm.backend import host_messages as messages
from keepwarm.backend.host_arena import MappedArena
from keepwarm.backend.rank_link import MessageDecoder, encode_message
from keepwarm.core.errors import InvariantBroken, from_wire
from keepwarm.core.hashing import join_hashes
from keepwarm.core.host_tier import ArenaLayout, HostArena, HostGeometry, HostLease, HostTierLost, LeaseId
from keepwarm.core.ids import BlockHash, block_ids

ANSWER_LIMIT_S = 5.0
"""An answer takes a millisecond; whoever waits for longer waits for a process that hangs."""


def attach(
    socket_path: str, *, rank: int, geometry: HostGeometry, limit_s: float = ANSWER_LIMIT_S
) -> HostClient:
    """Map the arena, as one of the replica's ranks; `close` it last of all.

    Raises `BadSetting` where its blocks cannot be this rank's, and `HostTierLost`.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(limit_s)
        connection.connect(socket_path)
        connection.sendall(encode_message(messages.Attach(rank=rank, geometry=geometry)))
        return _attached(connection)
    except OSError as error:
        connection.close()
        raise _lost(error) from error
    except BaseException:
        connection.close()
        raise


class HostClient:
    """`HostTier` over a connection."""

    def __init__(self, connection: socket.socket, mapped: MappedArena) -> None:
        self._connection = connection
        self._mapped = mapped
        self._decoder = _decoder()
        self._lost: HostTierLost | None = None

    @property
    def arena(self) -> HostArena:
        """Mapped until `close`."""
        return self._mapped.arena

    def find(self, after: BlockHash | None, names: Sequence[BlockHash]) -> HostLease | None:
        """See `HostTier.find`."""
        return self._lease(messages.Find(after=after, names=join_hashes(names)))

    def prefetch(self, after: BlockHash | None, names: Sequence[BlockHash]) -> bool:
        """See `HostTier.prefetch`."""
        question = messages.Prefetch(after=after, names=join_hashes(names))
        return isinstance(self._ask(question), messages.Yes)

    def reserve(self, after: BlockHash | None, names: Sequence[BlockHash]) -> HostLease | None:
        """See `HostTier.reserve`."""
        return self._lease(messages.Reserve(after=after, names=join_hashes(names)))

    def written(self, lease: HostLease) -> None:
        """See `HostTier.written`."""
        self._ask(messages.Written(lease_id=lease.lease_id))

    def release(self, lease: HostLease) -> None:
        """See `HostTier.release`."""
        self._ask(messages.Release(lease_id=lease.lease_id))

    def drop(self, names: Sequence[BlockHash]) -> None:
        """See `HostTier.drop`."""
        self._ask(messages.Drop(names=join_hashes(names)))

    def switch_off(self, reason: str) -> None:
        """See `HostTier.switch_off`."""
        self._ask(messages.SwitchOff(reason=reason))

    def close(self) -> None:
        """Nothing reads or writes the arena any more: all leases end, and it is not mapped any more."""
        if self._lost is None:
            with contextlib.suppress(HostTierLost):
                self._ask(messages.Bye())
        self._connection.close()
        self._mapped.close()

    def _lease(self, question: messages.Find | messages.Reserve) -> HostLease | None:
        answer = self._ask(question)
        if not isinstance(answer, messages.Lease):
            return None
        return HostLease(
            lease_id=LeaseId(answer.lease_id),
            num_present=answer.num_present,
            slots=block_ids(np.frombuffer(answer.slots, dtype="<i8")),
            num_from_disk=answer.num_from_disk,
        )

    def _ask(self, question: messages.ToHost) -> messages.FromHost:
        """Raises `HostTierLost`; if the connection is to blame, from then on always."""
        if self._lost is not None:
            raise HostTierLost(str(self._lost))
        try:
            self._connection.sendall(encode_message(question))
            answer = _receive(self._connection, self._decoder)
        except (OSError, InvariantBroken, msgspec.DecodeError) as error:
            self._lost = _lost(error)
            self._connection.close()  # an answer that comes late would be taken for the next one
            raise self._lost from error
        if isinstance(answer, messages.Off):
            raise HostTierLost(f"host memory is switched off: {answer.reason}")
        return answer


def _attached(connection: socket.socket) -> HostClient:
    """The answer to `Attach`, and the descriptor that comes with its first byte."""
    decoder = _decoder()
    raw, descriptors, _flags, _address = socket.recv_fds(connection, 4096, 1)
    try:
        if not raw:
            raise ConnectionResetError("it closed the connection")
        told = [*decoder.feed(raw)]
        answer = told[0] if told else _receive(connection, decoder)
        match answer:
            case messages.Attached() if descriptors:
                layout = ArenaLayout(num_slots=answer.num_slots, slot_bytes=answer.slot_bytes)
                return HostClient(connection, _mapped(descriptors[0], layout))
            case messages.Refused():
                raise from_wire(answer.error)
            case messages.Off():
                raise HostTierLost(f"host memory is switched off: {answer.reason}")
            case _:
                raise HostTierLost(f"host memory was not attached: {answer}")
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _mapped(descriptor: int, layout: ArenaLayout) -> MappedArena:
    try:
        return MappedArena(descriptor, layout)
    except OSError as error:
        raise HostTierLost(
            f"{layout.total_bytes / 1e9:.2f} GB of host memory cannot be mapped: {error.strerror}"
        ) from error


def _receive(connection: socket.socket, decoder: MessageDecoder[messages.FromHost]) -> messages.FromHost:
    """The next message. Raises `OSError`."""
    while True:
        num_bytes = connection.recv_into(decoder.room())
        if not num_bytes:
            raise ConnectionResetError("it closed the connection")
        for message in decoder.received(num_bytes):
            return message


def _decoder() -> MessageDecoder[messages.FromHost]:
    return MessageDecoder(msgspec.msgpack.Decoder[messages.FromHost](messages.FromHost))


def _lost(error: Exception) -> HostTierLost:
    return HostTierLost(f"the owner of host memory does not answer: {error}")
