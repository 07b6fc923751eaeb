"""The sockets of `keepwarm hostcache`: who is connected, who has died, who listens.

    rank ── Attach, then questions ──▶ answers, one each
    front ── Observe ──▶ a stream of what becomes of blocks;  PutRecords, GetRecords
    end of file ──▶ the leases end once the process at the other end is gone: until then its
                    copies may go on, and what is in flight is never freed

Owns connections; what is answered is `HostCache`'s business.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import msgspec

from keepwarm.backend import host_messages as messages
from keepwarm.backend.host_cache import HostCache
from keepwarm.backend.host_disk import HostDisk
from keepwarm.backend.rank_link import MessageDecoder, encode_message
from keepwarm.cache.host_index import Owner
from keepwarm.core.errors import BadSetting, InvariantBroken, to_wire
from keepwarm.core.rank_messages import CacheEvent

logger = logging.getLogger(__name__)

STATUS_INTERVAL_S = 1.0
"""Who listens is told the numbers at least so often."""
_MAX_UNTOLD_EVENTS = 10_000
"""Of a listener that does not read: it gets the whole again instead."""
_ACCEPT_RETRY_S = 0.1
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid


@dataclass(slots=True, eq=False)
class _Listener:
    """One connection that observes."""

    untold: list[CacheEvent] | None = None
    """None: it needs the whole."""
    wakes: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, events: tuple[CacheEvent, ...]) -> None:
        if self.untold is not None:
            self.untold += events
            if len(self.untold) > _MAX_UNTOLD_EVENTS:
                self.untold = None
        self.wakes.set()


class HostServer:
    """Serves one `HostCache`; all of it on one event loop."""

    def __init__(self, cache: HostCache) -> None:
        self._cache = cache
        self._listeners: set[_Listener] = set()
        self._num_connections = 0
        self._disk_wakes = asyncio.Event()

    async def serve(self, listener: socket.socket) -> None:
        """Until it is cancelled. The socket stays the caller's."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as connections:
            if self._cache.disk is not None:
                connections.create_task(self._tick(self._cache.disk), name="disk cache")
            while True:
                try:
                    connection, _address = await loop.sock_accept(listener)
                except OSError as error:  # too many open files, say
                    logger.warning("a connection could not be accepted: %s", error)
                    await asyncio.sleep(_ACCEPT_RETRY_S)
                    continue
                self._num_connections += 1
                owner = Owner(self._num_connections)
                connections.create_task(self._serve_one(connection, owner), name=f"connection {owner}")

    async def _tick(self, disk: HostDisk) -> None:
        """Between the tiers: when a thread of the disk has ended something, L1 changed, or time passed."""
        loop = asyncio.get_running_loop()
        disk.wake = functools.partial(loop.call_soon_threadsafe, self._disk_wakes.set)
        while True:
            self._disk_wakes.clear()
            try:
                due_in_s = self._cache.tick()
            except Exception:  # a mistake of ours there shall not end host memory
                logger.exception("nothing goes to disk any more")
                return
            self._publish()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._disk_wakes.wait(), due_in_s)

    async def _serve_one(self, connection: socket.socket, owner: Owner) -> None:
        """One connection, from its first message until nothing of its process is left."""
        with connection, _process_of(connection) as process:
            try:
                said_bye = await self._answer_all(connection, owner)
            except OSError:
                said_bye = False
            except Exception:
                logger.exception("connection %d is closed", owner)
                said_bye = False
            connection.close()  # whoever waits for an answer hears of it now
            if not said_bye and self._cache.is_attached(owner):
                await process.wait_until_gone()
            self._cache.leave(owner)
            self._publish()

    async def _answer_all(self, connection: socket.socket, owner: Owner) -> bool:
        """Whether it said goodbye."""
        loop = asyncio.get_running_loop()
        async for message in _messages_from(connection):
            match message:
                case messages.Attach():
                    await self._attach(connection, owner, message)
                case messages.Observe():
                    await self._observe(connection)
                case messages.PutRecords():
                    for key, value in message.records:
                        self._cache.records.put(key, value)
                case messages.GetRecords():
                    await self._send_records(connection)
                case messages.Check():
                    await loop.sock_sendall(connection, encode_message(self._checked()))
                case messages.Bye():
                    self._cache.leave(owner)
                    self._publish()
                    await loop.sock_sendall(connection, encode_message(messages.Done()))
                    return True
                case _:
                    answer = self._cache.answer(owner, message)
                    self._publish()
                    await loop.sock_sendall(connection, encode_message(answer))
        return False

    async def _attach(self, connection: socket.socket, owner: Owner, message: messages.Attach) -> None:
        try:
            answer = self._cache.attach(owner, message)
        except BadSetting as error:
            logger.error("%s", error)
            refusal = encode_message(messages.Refused(error=to_wire(error)))
            await asyncio.get_running_loop().sock_sendall(connection, refusal)
            return
        self._publish()
        raw = encode_message(answer)
        if isinstance(answer, messages.Attached):  # the first answer: there is room for it in the socket
            sent = socket.send_fds(connection, [raw], [self._cache.descriptor])
            raw = raw[sent:]
        await asyncio.get_running_loop().sock_sendall(connection, raw)

    def _checked(self) -> messages.Done | messages.Refused:
        try:
            self._cache.check()
        except InvariantBroken as error:
            logger.exception("the index of host memory is broken")
            return messages.Refused(error=to_wire(error))
        return messages.Done()

    async def _send_records(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for batch in self._cache.records.batches():
            message = messages.Records(records=batch, is_last=False)
            await loop.sock_sendall(connection, encode_message(message))
        await loop.sock_sendall(connection, encode_message(messages.Records(records=(), is_last=True)))

    async def _observe(self, connection: socket.socket) -> None:
        """Until the connection breaks (`OSError`)."""
        loop = asyncio.get_running_loop()
        listener = _Listener()
        self._listeners.add(listener)
        try:
            while True:
                told = self._told(listener)
                await loop.sock_sendall(connection, encode_message(told))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(listener.wakes.wait(), STATUS_INTERVAL_S)
                listener.wakes.clear()
        finally:
            self._listeners.discard(listener)

    def _told(self, listener: _Listener) -> messages.Told:
        events, listener.untold = listener.untold, []
        return messages.Told(
            is_whole=events is None,
            events=self._cache.contents() if events is None else tuple(events),
            status=self._cache.status(),
        )

    def _publish(self) -> None:
        events = self._cache.take_events()
        if events:
            self._disk_wakes.set()
            for listener in self._listeners:
                listener.tell(events)


async def _messages_from(connection: socket.socket) -> AsyncIterator[messages.ToHost]:
    """Until its end of file. Raises `OSError`."""
    loop = asyncio.get_running_loop()
    decoder = MessageDecoder(msgspec.msgpack.Decoder[messages.ToHost](messages.ToHost))
    while num_bytes := await loop.sock_recv_into(connection, decoder.room()):
        for message in decoder.received(num_bytes):
            yield message


@dataclass(frozen=True, slots=True)
class _Process:
    """The one at the other end of a connection."""

    descriptor: int | None
    """A pidfd, which is readable once the process is gone with all it had open; None: gone, or
    nothing is known of it."""

    async def wait_until_gone(self) -> None:
        if self.descriptor is None:
            return
        loop = asyncio.get_running_loop()
        gone = asyncio.Event()
        loop.add_reader(self.descriptor, gone.set)
        try:
            await gone.wait()
        finally:
            loop.remove_reader(self.descriptor)


@contextlib.contextmanager
def _process_of(connection: socket.socket) -> Iterator[_Process]:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid: int = _CREDENTIALS.unpack(raw)[0]
    try:
        descriptor = os.pidfd_open(pid)
    except (OSError, ValueError, AttributeError):  # gone already, or a kernel or Python without pidfds
        yield _Process(None)
        return
    try:
        yield _Process(descriptor)
    finally:
        os.close(descriptor)
