"""A front's side of `keepwarm hostcache`: records for after a restart, and what becomes of blocks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

import msgspec

from keepwarm.backend import host_messages as messages
from keepwarm.backend.rank_link import MessageDecoder, encode_message
from keepwarm.core.errors import InvariantBroken, from_wire
from keepwarm.core.host_tier import HostTierLost

ANSWER_LIMIT_S = 30.0
_SILENCE_LIMIT_S = 30.0
"""Something is told each second."""
_MAX_UNSENT_BYTES = 16 << 20
_READ_BYTES = 1 << 18


class RecordsLink:
    """Opaque records kept by the owner of host memory."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, socket_path: str) -> RecordsLink:
        """Raises `HostTierLost`."""
        return cls(*await _connect(socket_path))

    def put_record(self, key: bytes, value: bytes) -> bool:
        """Have it kept; never waits. False: it is not, as its owner is gone or does not keep up."""
        transport = self._writer.transport
        if transport.is_closing() or transport.get_write_buffer_size() > _MAX_UNSENT_BYTES:
            return False
        self._writer.write(encode_message(messages.PutRecords(records=((key, value),))))
        return True

    async def all_records(self) -> list[tuple[bytes, bytes]]:
        """Those that are kept, oldest first. Raises `HostTierLost`. One call at a time."""
        found: list[tuple[bytes, bytes]] = []
        self._writer.write(encode_message(messages.GetRecords()))
        async for message in _messages_from(self._reader, ANSWER_LIMIT_S):
            if isinstance(message, messages.Records):
                found += message.records
                if message.is_last:
                    return found
        raise HostTierLost("the owner of host memory closed the connection")

    async def close(self) -> None:
        """What was put is sent first."""
        await _close(self._writer)


async def observe(socket_path: str) -> AsyncGenerator[messages.Told, None]:
    """What becomes of blocks, from a first message with all that is there. Raises `HostTierLost`,
    also when its owner ends or says nothing for long."""
    reader, writer = await _connect(socket_path)
    try:
        writer.write(encode_message(messages.Observe()))
        async for message in _messages_from(reader, _SILENCE_LIMIT_S):
            if isinstance(message, messages.Told):
                yield message
    finally:
        await _close(writer)
    raise HostTierLost("the owner of host memory closed the connection")


async def check(socket_path: str) -> None:
    """For tests and soaks: raises `InvariantBroken` unless every block is accounted for, `HostTierLost`."""
    reader, writer = await _connect(socket_path)
    try:
        writer.write(encode_message(messages.Check()))
        async for message in _messages_from(reader, ANSWER_LIMIT_S):
            if isinstance(message, messages.Refused):
                raise from_wire(message.error)
            return
    finally:
        await _close(writer)
    raise HostTierLost("the owner of host memory closed the connection")


async def _connect(socket_path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        async with asyncio.timeout(ANSWER_LIMIT_S):
            return await asyncio.open_unix_connection(socket_path)
    except OSError as error:
        raise HostTierLost(f"the owner of host memory does not answer: {error}") from error


async def _messages_from(reader: asyncio.StreamReader, limit_s: float) -> AsyncIterator[messages.FromHost]:
    """Until end of file. `limit_s` for each. Raises `HostTierLost`."""
    decoder = MessageDecoder(msgspec.msgpack.Decoder[messages.FromHost](messages.FromHost))
    try:
        while True:
            async with asyncio.timeout(limit_s):
                piece = await reader.read(_READ_BYTES)
            if not piece:
                return
            for message in decoder.feed(piece):
                yield message
    except TimeoutError as error:
        raise HostTierLost(f"the owner of host memory has said nothing for {limit_s:g} s") from error
    except (OSError, InvariantBroken, msgspec.DecodeError) as error:
        raise HostTierLost(f"the owner of host memory is lost: {error}") from error


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
