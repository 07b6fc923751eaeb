"""One reader of a replica's cache events: what was there when it came, then what changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from keepwarm.backend.cache_lines import End, encode_line


class JournalReader:
    """An `EventFeed`. What changes while it does not read waits here, up to a limit."""

    def __init__(
        self,
        snapshot: Iterator[bytes],
        *,
        max_unread_bytes: int,
        on_closed: Callable[[JournalReader], None],
    ) -> None:
        self._snapshot = snapshot
        self._max_unread_bytes = max_unread_bytes
        self._on_closed = on_closed
        self._unread: list[bytes] = []
        self._num_unread_bytes = 0
        self._last: bytes | None = None
        """The line that ends it, once it is known, and empty once it was told."""
        self._stirred = asyncio.Event()

    def tell(self, piece: bytes) -> None:
        """Something changed. Ends the reader where it has not taken what came before."""
        if self._last is not None:
            return
        self._unread.append(piece)
        self._num_unread_bytes += len(piece)
        self._stirred.set()
        if self._num_unread_bytes > self._max_unread_bytes:
            self.close(f"dropped: more than {self._max_unread_bytes} bytes were not read in time")

    async def next(self) -> bytes:
        """See `EventFeed.next`."""
        while True:
            if self._last is not None:
                last, self._last = self._last, b""
                return last
            if piece := next(self._snapshot, None):
                return piece
            if self._unread:
                return self._take()
            self._stirred.clear()
            await self._stirred.wait()

    def close(self, reason: str) -> None:
        """See `EventFeed.close`."""
        if self._last is not None:
            return
        self._last = encode_line(End(reason=reason))
        self._unread, self._snapshot = [], iter(())
        self._stirred.set()
        self._on_closed(self)

    def _take(self) -> bytes:
        piece = b"".join(self._unread)
        self._unread, self._num_unread_bytes = [], 0
        return piece
